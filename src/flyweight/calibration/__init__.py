"""Statistics of the inputs of a model's matrices, gathered by running it over text.

    from flyweight.calibration import calibrate

    report = calibrate("model-hf", "model.stats", texts=["prose.txt", "code.py"], gram=True)
    convert("model-hf", "model.gguf", quant="q4_k", statistics="model.stats")

`gathering` takes all windows through a layer before the next, `input_sums` adds up what each input is, `sampling` chooses the
windows from the texts.
"""

from flyweight.calibration.gathering import Calibration, calibrate
from flyweight.calibration.shipped import shipped_texts

__all__ = ["Calibration", "calibrate", "shipped_texts"]
