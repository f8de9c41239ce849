"""Programs that come from outside, such as tokenizers and chat templates, in processes that can be ended.

`root` starts one process that runs nothing of theirs; `process` is what it and its descendants do; `branch` is one of
those as its owner sees it; `pool` has all of one program. Nothing here knows what a program is for. All of it is called
from an event loop, on which a job costs two system calls.
"""
