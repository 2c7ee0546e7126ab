"""``if``, ``case``, loops and functions out of the parser's tree."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from allranks.lint.shell.model import Branches, Function, Group, Loop, Statement
from allranks.lint.shell.shell_words import Words
from allranks.lint.source_text import SourceFile, Span

if TYPE_CHECKING:
    from tree_sitter import Node


class Compound(ABC):
    """Statements that hold others; those who build on this read the others."""

    source: SourceFile
    words: Words

    @abstractmethod
    def span(self, node: Node) -> Span:
        """The place of a node."""

    @abstractmethod
    def statement(self, node: Node) -> list[Statement]:
        """What one node says, if it is a statement."""

    @abstractmethod
    def statements(self, node: Node) -> tuple[Statement, ...]:
        """The statements among a node's children."""

    def _if_statement(self, node: Node) -> Branches:
        conditions: list[Statement] = []
        bodies: list[tuple[Statement, ...]] = []
        complete = self._clause(node, conditions, bodies)
        return Branches(tuple(conditions), tuple(bodies), complete, self.span(node))

    def _clause(
        self,
        node: Node,
        conditions: list[Statement],
        bodies: list[tuple[Statement, ...]],
    ) -> bool:
        """One ``if`` or ``elif``; whether an ``else`` follows."""
        body: list[Statement] = []
        before, complete = True, False
        rest: list[Node] = []
        for child in node.children:
            if child.type == "then":
                before = False
            elif child.type in ("elif_clause", "else_clause"):
                rest.append(child)
            elif child.type == "&" and body:
                body[-1] = Group((body[-1],), body[-1].span, background=True)
            elif child.is_named:
                (conditions if before else body).extend(self.statement(child))
        bodies.append(tuple(body))
        for child in rest:
            if child.type == "else_clause":
                bodies.append(self.statements(child))
                complete = True
            else:
                self._clause(child, conditions, bodies)
        return complete

    def _case_statement(self, node: Node) -> Branches:
        subject = node.child_by_field_name("value")
        bodies: list[tuple[Statement, ...]] = []
        complete = False
        for item in node.children:
            if item.type == "case_item":
                first = item.child_by_field_name("value")
                complete |= first is not None and self.span(first).text == "*"
                bodies.append(self.statements(item))
        word = None if subject is None else self.words.word(subject)
        return Branches((), tuple(bodies), complete, self.span(node), word)

    def _for_statement(self, node: Node) -> Loop:
        name = node.child_by_field_name("variable")
        values = [self.words.word(each) for each in node.children_by_field_name("value")]
        body = node.child_by_field_name("body")
        return Loop(
            "" if name is None else self.span(name).text,
            tuple(values) if any(child.type == "in" for child in node.children) else None,
            (),
            () if body is None else self.statements(body),
            self.span(node),
        )

    def _c_style_for_statement(self, node: Node) -> Loop:
        body = node.child_by_field_name("body")
        match = re.match(r"for\s*\(\(\s*(\w+)", self.source.text[node.start_byte : node.end_byte])
        inner = () if body is None else self.statements(body)
        return Loop(match[1] if match else "", None, (), inner, self.span(node))

    def _while_statement(self, node: Node) -> Loop:
        body = node.child_by_field_name("body")
        conditions = [
            each
            for child in node.children_by_field_name("condition")
            for each in self.statement(child)
        ]
        inner = () if body is None else self.statements(body)
        return Loop("", None, tuple(conditions), inner, self.span(node))

    def _function_definition(self, node: Node) -> Function:
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        inner = () if body is None else tuple(self.statement(body))
        return Function("" if name is None else self.span(name).text, inner, self.span(node))
