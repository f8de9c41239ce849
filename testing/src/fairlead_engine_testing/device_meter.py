"""A device's memory, played: so much is free, and a step takes a gibibyte."""

from fairlead_engine.runner.cuda_device import DeviceMemory

GIB = 2**30


class DeviceMeter:
    """Stands for `CUDAMemory` of a device of 8 GiB, and notes when it was looked at."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.notes: list[str] = []

    def begin(self) -> None:
        self.notes.append("begin")

    def read(self) -> DeviceMemory:
        self.notes.append("read")
        return DeviceMemory(8 * GIB, self.free, GIB)
