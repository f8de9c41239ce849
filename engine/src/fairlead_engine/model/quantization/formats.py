"""The formats of weights by the names that the setting `quantization` has for them."""

from fairlead_engine.model.quantization.fp8 import Fp8
from fairlead_engine.model.quantization.int4_weight_only import Int4WeightOnly
from fairlead_engine.model.quantization.int8 import Int8
from fairlead_engine.model.quantization.int8_weight_only import Int8WeightOnly
from fairlead_engine.model.quantization.weight_format import WeightFormat

FORMATS: dict[str, WeightFormat] = {
    weight_format.name: weight_format for weight_format in (Int8(), Int8WeightOnly(), Int4WeightOnly(), Fp8())
}
