"""From a `Batch` to sampled tokens: tensors of a step, forward pass, sampling. Start at `model_runner.ModelRunner`.

The runner never decides what runs and never changes a sequence: both are the core's business.
"""

from fairlead_engine.runner.model_runner import ModelRunner

__all__ = ["ModelRunner"]
