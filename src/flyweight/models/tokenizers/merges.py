"""Merges and scores: the two ways to state which pair of tokens is merged first.

SentencePiece (GGUF's `llama` tokenizer) scores tokens: of all neighbours whose text together is a token, the one
with the highest score joins. tokenizer.json ranks pairs. Every way to cut a token into two tokens becomes a
pair; pairs are ranked by the score of what they make, longer left parts first, so that runs grow from the left
as far as they can. The way back ranks tokens by the first pair that makes them: score = −rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flyweight.foundation.errors import LimitError
from flyweight.models.tokenizers.vocabulary import TokenType

_MAX_CUTS_BYTES = 2**30  # the text all cuts together would hold; the largest vocabularies need a hundredth
_CHARACTER_BITS = 21

Array = np.ndarray[Any, np.dtype[np.int64]]


def merges_from_scores(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The ranked pairs that join pieces in the order of the scores."""
    if sum(len(token) ** 2 for token in tokens) > _MAX_CUTS_BYTES:
        raise LimitError("the tokens are too long to try every split", code="E_TOKENIZER")
    kinds = np.array(types, np.int64)
    normal = kinds == TokenType.NORMAL
    merging = np.flatnonzero(normal | (kinds == TokenType.USER_DEFINED))
    pieces = [tokens[index] for index in merging.tolist()]
    # Tokens of the user are taken wherever they appear, before any other.
    priority = np.where(normal, np.array(scores, np.float64), np.inf)[merging]
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    characters = np.frombuffer("".join(pieces).encode("utf-32-le"), np.uint32).astype(np.int64)
    ends = np.cumsum(lengths)
    prefixes = _pieces_along(characters, ends - lengths, lengths, 1)
    suffixes = _pieces_along(characters, ends - 1, lengths, -1)
    token = np.repeat(np.arange(len(pieces)), lengths)
    cuts = np.flatnonzero((prefixes[:-1] >= 0) & (suffixes[1:] >= 0) & (token[:-1] == token[1:]))
    left, right = prefixes[cuts], suffixes[cuts + 1]
    # Stable: pairs alike stay in the order of the tokens.
    order = np.lexsort((-lengths[right], -lengths[left], -priority[token[cuts]]))
    return [(pieces[one], pieces[other]) for one, other in zip(left[order].tolist(), right[order].tolist(), strict=True)]


def _pieces_along(characters: Array, first: Array, lengths: Array, step: int) -> Array:
    """For every character of every token the piece that the token is up to there, −1 for none.

    `first` is where each token begins and `step` the way its characters lie: 1 finds prefixes, −1 from the ends suffixes. All
    tokens walk down a trie together, a level at a time: two are at the same node when they were at the same one and go on with
    the same character. A quarter of a million tokens are so cut in every place without making a text of any.
    """
    found = np.full(len(characters), -1)
    longest = np.argsort(-lengths, kind="stable")  # so that tokens with a character more are always the first ones
    first, lengths = first[longest], lengths[longest]
    node = np.zeros(len(first), np.int64)
    for level in range(int(lengths.max(initial=0))):
        going = int(np.searchsorted(-lengths, -level))
        at = first[:going] + step * level
        nodes, node = np.unique(node[:going] << _CHARACTER_BITS | characters[at], return_inverse=True)
        ending = slice(int(np.searchsorted(-lengths, -level - 1)), going)
        piece = np.full(len(nodes), -1)
        piece[node[ending]] = longest[ending]
        found[at] = piece[node]
    return found


def scores_from_merges(ids: Mapping[str, int], types: Sequence[int], merges: Sequence[tuple[str, str]]) -> dict[int, float]:
    """The score of every normal token that a pair makes, by its id."""
    scores: dict[int, float] = {}
    for left, right in merges:
        made = ids.get(left + right)
        if made is not None and made not in scores and types[made] == TokenType.NORMAL:
            scores[made] = -float(len(scores))
    return scores
