"""Abilities: what only some containers can do, each as a small protocol.

A container has an ability by having its members; nothing is registered. Who needs one asks `isinstance(container, Audits)` and
does without where the answer is no. A new ability is a protocol here and the one place that asks for it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from flyweight.containers.container import Arrangement, Chunks, Container, Finding, Placement, Use
from flyweight.containers.named_quantizations import Preset
from flyweight.foundation.accuracy_gate import Verdict
from flyweight.foundation.manifest import Entry, Extent, Manifest, Typed
from flyweight.foundation.tensor import CodecSpec
from flyweight.sources import Bundle

# Reading ------------------------------------------------------------------------------------------


@runtime_checkable
class Inflates(Protocol):
    """Members may be stored compressed."""

    def view(self, bundle: Bundle) -> Bundle:
        """The bundle as extents see it. `parse` takes either."""


@runtime_checkable
class ChecksBlocks(Protocol):
    """Something lies beside a tensor's bytes that says what they are, and that `parse` does not read."""

    def check_block(self, bundle: Bundle, entry: Entry) -> None:
        """MalformedError where it contradicts the entry; asked once for a tensor, before its bytes are used."""


@runtime_checkable
class Summarises(Protocol):
    """A file says more of itself than tensors, metadata and side files."""

    def summary(self, bundle: Bundle) -> Mapping[str, Any]:
        """That, for people and for JSON."""


@runtime_checkable
class Warns(Protocol):
    """The format allows what a strict reader might object to."""

    def warnings(self, bundle: Bundle, manifest: Manifest) -> Iterable[tuple[str, str]]:
        """What of that is found: (code, message) pairs, for `verify` and `inspect`."""


@runtime_checkable
class Audits(Protocol):
    """Broken rules can be listed after the first, and digests checked."""

    def audit(self, bundle: Bundle) -> Iterator[Finding]:
        """Every broken rule; also of a file that `parse` refuses."""


@runtime_checkable
class Restates(Protocol):
    """Some of what a file says is read in other terms, without a change of value."""

    def restated(self, bundle: Bundle) -> Iterable[str]:
        """What of that there is, for the report of a conversion."""


@runtime_checkable
class KnowsUses(Protocol):
    """The format has a program, which says what weights are for."""

    def uses(self, bundle: Bundle) -> Mapping[str, Sequence[Use]]:
        """The operations that use each weight, by its name."""


# Writing ------------------------------------------------------------------------------------------


@runtime_checkable
class Adapts(Protocol):
    """The same arithmetic is stored with a bit order, word type or identity of the format's own."""

    def adapt(self, codec: CodecSpec, name: str = "") -> CodecSpec:
        """The codec as it is stored here for the tensor `name`."""


def adapted(container: Container, codec: CodecSpec, name: str = "") -> CodecSpec:
    return container.adapt(codec, name) if isinstance(container, Adapts) else codec


@runtime_checkable
class Describes(Protocol):
    """Metadata say something of the tensors."""

    def describe(self, entries: Mapping[str, Entry], metadata: Mapping[str, Typed], recipe: str) -> Mapping[str, Typed]:
        """The metadata with that made true, for tensors that are new, by a recipe of this name."""


@runtime_checkable
class WritesConfig(Protocol):
    """config.json says how the weights are stored. Elsewhere it must not."""

    def config(self, config: Mapping[str, Any], entries: Mapping[str, Entry]) -> Mapping[str, Any]:
        """config.json with that made true, for `place` to write; the same object where it is true already."""


@runtime_checkable
class Arranges(Protocol):
    """Loaders look for tensors that a model may not have, or want some of them plain."""

    def arrange(self, names: Collection[str], config: Mapping[str, Any]) -> Arrangement:
        """What of that holds for a model of these tensors and settings."""


@runtime_checkable
class EmbedsFiles(Protocol):
    """A single file holds a whole model: the side files that running it needs, too."""

    embeds: ClassVar[Mapping[str, int]]
    """The names it has a place for, and how many bytes of each."""


@runtime_checkable
class ReadsFiles(Protocol):
    """What `place` writes depends on side files other than config.json."""

    reads: ClassVar[Sequence[str]]
    """Their names; it gets their bytes."""


@runtime_checkable
class OwnsFiles(Protocol):
    """Other files than those that tensors are in belong to the format: indexes, records, sentinels."""

    own_files: ClassVar[Sequence[str]]
    """Patterns of their names; one that ends with "/" is a folder that is a model directory itself."""


@runtime_checkable
class Finishes(Protocol):
    """Something can be said only when the weights are written, such as their digests."""

    def finish(self, placement: Placement, digests: Mapping[str, str], read: Callable[[Extent], bytes]) -> Mapping[str, Chunks]:
        """That, by file: it replaces bytes that `place` left provisional.

        `digests` has the BLAKE3 of each extent in `placement.digests`; `read` returns bytes already written.
        """


@runtime_checkable
class RecordsGate(Protocol):
    """A checkpoint records the accuracy gate it went through, and weights that need one are used only with that."""

    def verdict(self, bundle: Bundle) -> Verdict | None:
        """What is recorded, if anything."""

    def certify(self, placement: Placement, verdict: Verdict, read: Callable[[Extent], bytes]) -> Mapping[str, bytes]:
        """The files that record a verdict, whole, once all else is written."""


# Choices of the user ------------------------------------------------------------------------------


@runtime_checkable
class HasPresets(Protocol):
    """Some names of quantizations mean a form of the format's own."""

    quants: ClassVar[Sequence[str]]
    """These names, for people."""

    def preset(self, quant: str, extras: Any) -> Preset | None:
        """What a name means here, given the format's own options; None: what it means everywhere."""


@runtime_checkable
class HasSizes(Protocol):
    """Its matrices may have one of several codecs, so that a model can be made to a size."""

    sizes: ClassVar[Sequence[CodecSpec]]
    """These codecs."""


@runtime_checkable
class AddsForms(Protocol):
    """A tensor may have several forms, and one can be added to a model that is there already."""

    def addition(self, bundle: Bundle, form: str) -> Addition:
        """What adding a form to this model takes. UnsupportedError for a form that cannot be added."""


class Addition(Container):
    """Files that join a model: what it places are these alone, in the order in which they are to appear.

    The last of them, `switch`, makes the new form count. Until it is there the model is what it was.
    """

    codec: CodecSpec
    """The new form."""
    folder: ClassVar[str]
    """Where arrays are; other files lie beside it."""
    switch: ClassVar[str]
    was_switched: bool
    """Whether the switch was there before, though no tensor had two forms."""
    sources: Sequence[Entry]
    """The tensors it is made from."""

    @abstractmethod
    def idle(self, files: Iterable[str]) -> list[str]:
        """Which of these files count for nothing: a run that was stopped left them."""

    @abstractmethod
    def note(self, added: int) -> str:
        """What is to be said if so many tensors get the new form; FlyweightError if the model does not allow that."""
