"""Work on whole checkpoints: convert, verify, diff, extract."""

from flyweight.containers.container import Finding
from flyweight.pipeline.compare import DiffReport, diff
from flyweight.pipeline.conversion import convert, execute, plan_conversion, target_container
from flyweight.pipeline.conversion_report import ConversionReport, TensorReport
from flyweight.pipeline.extraction import ExtractReport, Part, extract, list_parts
from flyweight.pipeline.plans.plan import Plan, Step
from flyweight.pipeline.plans.quantization_names import preset
from flyweight.pipeline.plans.recipe import Recipe
from flyweight.pipeline.plans.recipe_file import load_recipe
from flyweight.pipeline.soundness import VerifyReport, verify

__all__ = [
    "ConversionReport",
    "DiffReport",
    "ExtractReport",
    "Finding",
    "Part",
    "Plan",
    "Recipe",
    "Step",
    "TensorReport",
    "VerifyReport",
    "convert",
    "diff",
    "execute",
    "extract",
    "list_parts",
    "load_recipe",
    "plan_conversion",
    "preset",
    "target_container",
    "verify",
]
