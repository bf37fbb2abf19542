"""Conversions for a chip: which form each weight gets, what the report says, and the package that a file embeds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight import Plan
from flyweight.checkpoint import open_checkpoint
from flyweight.containers import container_named, mlpackage
from flyweight.containers.coreml.coreml_options import CoremlExtras
from flyweight.containers.squizd.squizd_options import Extras as SquizdExtras
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Extent
from flyweight.foundation.tensor import RAW
from flyweight.models import dense_by_default
from flyweight.sources import MemorySource
from support.command_line import flyweight as command
from support.toys import write_toy_llama


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_toy_llama(tmp_path / "toy", layers=1)
    return tmp_path


def forms(path: Path | str) -> dict[str, str]:
    """The codec of each matrix but the embedding and the output head, with its bits where it has some."""
    with open_checkpoint(path) as checkpoint:
        return {
            name: f"{entry.codec.name}{entry.codec.params.get('bits', '')}"
            for name, entry in checkpoint.manifest.entries.items()
            if len(entry.spec.shape) == 2 and not dense_by_default(name)
        }


def test_the_error_decides_among_the_forms_that_stream(work: Path) -> None:
    """The M1 streams palettes of 4 and 8 bits, and folds int8."""
    flyweight.convert("toy", "fine.mlpackage", extras=CoremlExtras(target="M1", max_error=0.05))
    assert set(forms("fine.mlpackage").values()) == {"palette8"}
    flyweight.convert("toy", "coarse.mlpackage", extras=CoremlExtras(target="M1", max_error=0.3))
    assert set(forms("coarse.mlpackage").values()) == {"palette4"}


def test_the_default_error_keeps_the_model(work: Path) -> None:
    """A table of 16 values for a whole matrix is what a small model does not survive."""
    flyweight.convert("toy", "out.mlpackage", extras=CoremlExtras(target="M1"))
    assert set(forms("out.mlpackage").values()) == {"palette8"}


def test_auto_is_what_no_quantization_means(work: Path) -> None:
    named = command("convert", "toy", "named.mlpackage", "--target", "M1", "--quant", "auto", "--json").json()
    meant = command("convert", "toy", "meant.mlpackage", "--target", "M1", "--json").json()
    assert named["recipe"] == meant["recipe"] == "auto for H13"
    for file in Path("named.mlpackage").rglob("*.bin"):
        assert file.read_bytes() == Path("meant.mlpackage", *file.parts[1:]).read_bytes()


def test_a_named_form_is_kept_and_judged(work: Path) -> None:
    report = command("convert", "toy", "out.mlpackage", "--target", "M1", "--quant", "int8", "--json").json()
    (said,) = [note for note in report["notes"] if note.startswith("on H13")]
    assert f"{len(forms('out.mlpackage'))} fold to dense fp16" in said
    assert set(forms("out.mlpackage").values()) == {"blockwise"}


def test_an_unknown_chip_writes_nothing(work: Path) -> None:
    refused = command("convert", "toy", "out.mlpackage", "--target", "M17", "--json")
    assert refused.error()["code"] == "E_TARGET"
    assert not Path("out.mlpackage").exists()


def test_names_that_people_type(work: Path) -> None:
    asked = command("convert", "toy", "out.mlpackage", "--quant", "auto", "--json").error()
    assert (asked["code"], "--target M1" in str(asked)) == ("E_QUANT", True)
    assert "did you mean lut" in command("convert", "toy", "out.mlpackage", "--quant", "lut5").said
    assert command("convert", "toy", "out", "--to", "mlpackage", "--quant", "LUT6").code == 0
    assert set(forms("out").values()) == {"palette6"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profile", "seed"], "--target"),
        (["--target", "M1", "--max-error", "0"], "between 0 and 1"),
        (["--target", "M1", "--max-error", "0.1", "--quant", "lut4"], "--max-error"),
        (["--target", "M1", "--profile", "mine"], "neither seed nor disputed"),
    ],
)
def test_options_that_do_not_go_together(work: Path, options: list[str], said: str) -> None:
    refused = command("convert", "toy", "out.mlpackage", *options)
    assert refused.code == 2
    assert said in refused.stderr.decode()


def test_a_plan_has_the_forms(work: Path) -> None:
    flyweight.plan("toy", "out.mlpackage", extras=CoremlExtras(target="M1")).save("plan.json")
    flyweight.execute(Plan.load("plan.json"), "planned.mlpackage")
    flyweight.convert("toy", "out.mlpackage", extras=CoremlExtras(target="M1"))
    assert forms("planned.mlpackage") == forms("out.mlpackage")


# The package that a file embeds -------------------------------------------------------------------


def test_a_package_of_the_linear_layers_is_embedded(work: Path) -> None:
    assert command("convert", "toy", "out.squizd", "--quant", "int4", "--coreml", "auto").code == 0
    assert command("extract", "out.squizd", "coreml", "made.mlpackage").code == 0
    with open_checkpoint("toy") as source, open_checkpoint("made.mlpackage") as package:
        wanted = [n for n, e in source.manifest.entries.items() if len(e.spec.shape) == 2 and not dense_by_default(n)]
        assert list(package.manifest.entries) == wanted
        assert package.container is container_named("coreml")
        for name in wanted:
            assert package.manifest.entries[name].codec != RAW
            error = np.linalg.norm(package[name] - source[name]) / np.linalg.norm(source[name])
            assert error < 0.05


def test_inspect_names_the_plan_of_the_package(work: Path) -> None:
    command("convert", "toy", "out.squizd", "--quant", "int4", "--coreml", "auto:M2")
    told = {way["path"]: way["reason"] for way in command("inspect", "out.squizd", "--json").json()["dispatch"]}
    assert "on H13 (seed profile)" in told["ANE_COREML"]
    told = {
        way["path"]: way["reason"] for way in command("inspect", "out.squizd", "--target", "M2", "--json").json()["dispatch"]
    }
    assert "on H14 (seed profile)" in told["ANE_COREML"]
    assert "stream" in told["ANE_COREML"]


def test_a_plan_makes_the_package_again(work: Path) -> None:
    wish = SquizdExtras(coreml="auto:M1")
    flyweight.plan("toy", "out.squizd", quant="int4", extras=wish).save("plan.json")
    assert json.loads(Path("plan.json").read_bytes())["made"] == {"coreml": "auto:M1"}
    flyweight.execute(Plan.load("plan.json"), "planned.squizd")
    flyweight.convert("toy", "out.squizd", quant="int4", extras=wish)
    assert Path("planned.squizd").read_bytes() == Path("out.squizd").read_bytes()


@pytest.mark.parametrize(
    "made", [{"coreml": "model.mlpackage"}, {"eagle": "auto"}, {"other": "auto"}, {"coreml": 1}, ["coreml"]]
)
def test_a_plan_makes_nothing_else(work: Path, made: object) -> None:
    flyweight.plan("toy", "out.squizd", quant="int4", extras=SquizdExtras(coreml="auto")).save("plan.json")
    document = json.loads(Path("plan.json").read_bytes()) | {"made": made}
    Path("plan.json").write_text(json.dumps(document))
    with pytest.raises(FlyweightError, match="not a plan"):
        Plan.load("plan.json")


def test_a_file_called_auto_is_given_as_a_path(work: Path) -> None:
    refused = command("convert", "toy", "out.squizd", "--quant", "int4", "--coreml", "./auto")
    assert refused.code == 2
    assert "does not exist" in refused.stderr.decode()


def test_the_archive_is_a_bundle_of_its_files(work: Path) -> None:
    files = {"m.mlpackage/Manifest.json": b"{}", "m.mlpackage/Data/weight.bin": b"weights", "note": b"aside"}
    data = b"before" + mlpackage.archive(files)
    bundle = mlpackage.PackageBundle(MemorySource(data, "x"), Extent("x", 6, len(data) - 6))
    assert set(bundle) == {"Manifest.json", "Data/weight.bin"}
    assert bytes(bundle["Data/weight.bin"].read(0, 7)) == b"weights"
