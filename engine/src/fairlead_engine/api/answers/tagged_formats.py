"""Formats with each argument in tags of its own. Sources: the chat templates of the named models."""

from collections.abc import Collection

from fairlead_engine.api.answers.answer_text import (
    AnswerSource,
    Content,
    Reading,
    is_begun,
    left_out,
    space,
    starts_with,
    until,
)
from fairlead_engine.api.answers.calls import Found, cut
from fairlead_engine.api.answers.tagged_calls import Tags, tagged_call
from fairlead_engine.api.answers.tool_format import CallShape, ToolFormat


class Tagged(ToolFormat):
    """Formats with each argument in tags of its own: one call or several between two markers."""

    begin: str
    end: str
    tags: Tags

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        begins = (self.begin, self.tags.name) if self.tags.name else (self.begin,)
        while (marker := (yield from until(source, begins, Content))) is not None:
            if marker != self.begin:  # models forget the first
                source.unread(len(marker))
            yield from self._block(source, names, marker)

    def _block(self, source: AnswerSource, names: Collection[str], marker: str) -> Reading[None]:
        num_calls = 0
        source.mark()
        yield from space(source)
        while not self.tags.name or (yield from starts_with(source, self.tags.name)) is not None:
            found = yield from tagged_call(source, self.tags, names, self.end, is_known=marker != self.begin)
            if found is not Found.CALL:
                if found is Found.OTHER:
                    yield Content((self.begin if not num_calls and marker == self.begin else "") + self.tags.name)
                return
            num_calls += 1
            yield from space(source)
            if self.tags.end == self.end:
                return
        if num_calls:
            yield from starts_with(source, self.end)
            yield from space(source)
            yield from left_out(source, self.end, self.tags.name)
        elif is_begun(source, self.tags.name):
            yield from cut(source)
        else:
            source.back()
            yield Content(self.begin)


class Glm(Tagged):
    """GLM-4.5 to 4.7, and Ling 3 and Laguna: `NAME`, `<arg_key>` and `<arg_value>` in Hermes' markers."""

    begin, end = "<tool_call>", "</tool_call>"
    block = begin, end
    markers = (begin, end, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    tags = Tags("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", end)

    def __init__(self, template: str | None = None) -> None:
        gap = "" if template is not None and "</arg_key><arg_value>" in template else "\n"
        tags = self.tags._replace(gap=gap)
        self.shape = CallShape(self.begin, f"{{name}}{gap}", self.end, gap + self.begin, tags=tags)


class Qwen3Coder(Tagged):
    """Qwen3-Coder and Qwen3.5: `<function=NAME>` and `<parameter=NAME>` in Hermes' markers."""

    begin, end = "<tool_call>", "</tool_call>"
    block = begin, end
    markers = (begin, end)
    tags = Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", padding="\n")
    shape = CallShape(begin, "\n<function={name}>\n", "</function>\n" + end, "\n" + begin, tags=tags)


class MiniMax(Tagged):
    """MiniMax-M2: `<invoke name="NAME">` and `<parameter name="NAME">`, one call or several between two markers."""

    begin, end = "<minimax:tool_call>", "</minimax:tool_call>"
    block = begin, end
    markers = (begin, end)
    tags = Tags('<invoke name="', '">', '<parameter name="', '">', "", "</parameter>", "</invoke>")
    shape = CallShape(begin, '\n<invoke name="{name}">\n', "</invoke>", "", "", "\n" + end, tags=tags)


class SeedOss(Tagged):
    """Seed-OSS: Qwen3-Coder's tags, without lines around values, in markers of its own."""

    begin, end = "<seed:tool_call>", "</seed:tool_call>"
    block = begin, end
    markers = (begin, end)
    tags = Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>")
    shape = CallShape(begin, "\n<function={name}>\n", "</function>\n" + end, "\n" + begin, tags=tags)


class Hy3(Tagged):
    """Hunyuan 3: GLM's tags with a suffix, one call or several between two markers."""

    begin, end = "<tool_calls:opensource>", "</tool_calls:opensource>"
    block = begin, end
    tags = Tags(
        "<tool_call:opensource>", "<tool_sep:opensource>", "<arg_key:opensource>", "</arg_key:opensource>",
        "<arg_value:opensource>", "</arg_value:opensource>", "</tool_call:opensource>",
    )  # fmt: skip
    markers = (begin, end, *tags[:7])
    shape = CallShape(begin, f"\n{tags.name}{{name}}{tags.name_end}\n", tags.end, "\n", "", "\n" + end, tags=tags)


class DeepSeekTags(Tagged):
    """DeepSeek-V3.2 and V4: MiniMax's tags, which also tell whether a value is a text."""

    markers = ("｜DSML｜",)
    tags = Tags(
        '<｜DSML｜invoke name="', '">', '<｜DSML｜parameter name="', '" string="true">', "", "</｜DSML｜parameter>",
        "</｜DSML｜invoke>", other_end='" string="false">',
    )  # fmt: skip

    def __init__(self, template: str | None = None) -> None:
        word = "function_calls" if template is not None and "function_calls" in template else "tool_calls"
        self.begin, self.end = f"<｜DSML｜{word}>", f"</｜DSML｜{word}>"
        before = f"\n{self.tags.name}{{name}}{self.tags.name_end}\n"
        self.shape = CallShape(self.begin, before, self.tags.end, "", "", "\n" + self.end, tags=self.tags)
