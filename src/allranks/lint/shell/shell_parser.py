"""Shell text → statements. tree-sitter does the reading, so broken text costs only its own place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from allranks.lint.shell.compound_statements import Compound
from allranks.lint.shell.model import (
    Assignment,
    Chain,
    Command,
    Group,
    Parsed,
    Pipeline,
    Redirect,
    Statement,
    Word,
)
from allranks.lint.shell.shell_words import Words
from allranks.lint.source_text import SourceFile, Span

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_DEEPEST = 60
_TARGET = re.compile(r"^(\w+)(?:\[(.*)\])?(\+?)=", re.DOTALL)
_REDIRECTS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})


@lru_cache(maxsize=1)
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse(source: SourceFile) -> Parsed:
    """The statements of a text. Any text has some; what makes no sense is listed as broken."""
    tree = _parser().parse(source.plain)
    return _Reader(source).whole(tree.root_node)


class _Reader(Compound):
    """Turns the tree of one source into statements."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.words = Words(source, self.statements)
        self.comments: list[Span] = []
        self.broken: list[Span] = []
        self.depth = 0

    def whole(self, root: Node) -> Parsed:
        """Everything."""
        statements = self.statements(root)
        return Parsed(statements, tuple(self.comments), tuple(self.broken))

    def span(self, node: Node) -> Span:
        return self.source.span(node.start_byte, node.end_byte)

    def statements(self, node: Node) -> tuple[Statement, ...]:
        """The statements among a node's children."""
        if self.depth > _DEEPEST:
            self.broken.append(self.span(node))
            return ()
        self.depth += 1
        found: list[Statement] = []
        for child in node.children:
            if child.type == "&" and found:
                found[-1] = Group((found[-1],), found[-1].span, background=True)
            elif child.is_named:
                found += self.statement(child)
        self.depth -= 1
        return tuple(found)

    def statement(self, node: Node) -> list[Statement]:
        """What one node says, if it is a statement."""
        read = getattr(self, f"_{node.type}", None)
        if node.type == "ERROR":
            self.broken.append(self.span(node))
            return [_doubtful(each) for each in self.statements(node)]
        if node.is_missing:
            self.broken.append(self.span(node))
        if read is None:
            return []
        found: Statement | None = read(node)
        return [] if found is None else [found]

    def _comment(self, node: Node) -> None:
        self.comments.append(self.span(node))

    def _command(self, node: Node) -> Command:
        words: list[Word] = []
        assignments: list[Assignment] = []
        redirects: list[Redirect] = []
        for child in node.children:
            if child.type == "variable_assignment":
                assignments.append(self._assign(child))
            elif child.type in _REDIRECTS:
                redirects += self._redirects(child)[0]
            elif child.is_named and child.type not in ("comment", "ERROR"):
                words.append(self.words.word(child))
            elif not child.is_named:
                words.append(self.words.literal(child.start_byte, child.end_byte))
            elif child.type == "ERROR":
                self.broken.append(self.span(child))
        return Command(tuple(words), self.span(node), tuple(assignments), tuple(redirects))

    def _declaration_command(self, node: Node) -> Command:
        words: list[Word] = []
        declared: list[Assignment] = []
        for child in node.children:
            if child.type == "variable_assignment":
                declared.append(self._assign(child))
            elif child.type not in ("comment", "ERROR"):
                words.append(self.words.word(child))
        return Command(tuple(words), self.span(node), declared=tuple(declared))

    def _unset_command(self, node: Node) -> Command:
        words = tuple(self.words.word(child) for child in node.children)
        return Command(words, self.span(node))

    def _variable_assignment(self, node: Node) -> Command:
        return Command((), self.span(node), (self._assign(node),))

    def _variable_assignments(self, node: Node) -> Command:
        found = [self._assign(c) for c in node.children if c.type == "variable_assignment"]
        return Command((), self.span(node), tuple(found))

    def _test_command(self, node: Node) -> Command:
        return Command(tuple(self._leaves(node)), self.span(node))

    def _leaves(self, node: Node) -> Iterator[Word]:
        for child in node.children:
            if child.type.endswith("expression"):
                yield from self._leaves(child)
            elif child.end_byte > child.start_byte:
                yield self.words.word(child)

    def _assign(self, node: Node) -> Assignment:
        span = self.span(node)
        match = _TARGET.match(self.source.text[node.start_byte : node.end_byte])
        name, index, plus = (match[1], match[2] or "", match[3]) if match else ("", "", "")
        value = node.child_by_field_name("value")
        if value is not None and value.type == "array":
            kept = [c for c in value.children if c.is_named and c.type != "comment"]
            array = tuple(self.words.word(child) for child in kept)
            return Assignment(name, None, span, array, bool(plus), index)
        word = None if value is None else self.words.word(value)
        return Assignment(name, word, span, None, bool(plus), index)

    def _redirected_statement(self, node: Node) -> Statement | None:
        body: Statement | None = None
        redirects: list[Redirect] = []
        after: list[Statement] = []
        for child in node.children:
            if child.type in _REDIRECTS:
                found, following = self._redirects(child)
                redirects += found
                after += following
            elif child.is_named:
                inner = self.statement(child)
                body = inner[0] if inner else body
        whole = _with_redirects(body, tuple(redirects), self.span(node))
        return Pipeline((whole, *after), self.span(node)) if after else whole

    def _redirects(self, node: Node) -> tuple[list[Redirect], list[Statement]]:
        """The redirects of a node, and what a here-document's first line goes on with."""
        if node.type == "heredoc_redirect":
            return self._heredoc(node)
        target, descriptor, operator = None, "", ""
        for child in node.children:
            if child.type == "file_descriptor":
                descriptor = self.source.text[child.start_byte : child.end_byte]
            elif not child.is_named:
                operator = operator or self.source.text[child.start_byte : child.end_byte]
            elif target is None:
                target = self.words.word(child)
        body = target if operator == "<<<" else None
        return [Redirect(operator, target, self.span(node), descriptor, body)], []

    def _heredoc(self, node: Node) -> tuple[list[Redirect], list[Statement]]:
        found: list[Redirect] = []
        after: list[Statement] = []
        quoted, start, end, body = False, node.end_byte, node.end_byte, None
        for child in node.children:
            if child.type == "heredoc_start":
                text = self.source.text[child.start_byte : child.end_byte]
                quoted = any(mark in text for mark in "'\"\\")
            elif child.type == "heredoc_body":
                body, start, end = child, child.start_byte, child.end_byte
            elif child.type in _REDIRECTS:
                found += self._redirects(child)[0]
            elif child.is_named and child.type != "heredoc_end":
                after += self.statement(child)
        text_word = self.words.heredoc(body, start, end, quoted)
        found.append(Redirect("<<", None, self.span(node), "", text_word))
        return found, after

    def _pipeline(self, node: Node) -> Statement | None:
        stages = [each for child in node.named_children for each in self.statement(child)]
        return Pipeline(tuple(stages), self.span(node)) if stages else None

    def _list(self, node: Node) -> Statement | None:
        left: Statement | None = None
        operator = "&&"
        for child in node.children:
            if child.type in ("&&", "||"):
                operator = child.type
            elif child.is_named:
                for each in self.statement(child):
                    left = each if left is None else Chain(left, operator, each, self.span(node))
        return left

    def _negated_command(self, node: Node) -> Group:
        return Group(self.statements(node), self.span(node), negated=True)

    def _subshell(self, node: Node) -> Group:
        return Group(self.statements(node), self.span(node), subshell=True)

    def _compound_statement(self, node: Node) -> Statement:
        if node.children and node.children[0].type == "((":
            return Command(tuple(self._leaves(node)), self.span(node))
        return Group(self.statements(node), self.span(node))

    _do_group = _compound_statement


def _doubtful(statement: Statement) -> Statement:
    return replace(statement, doubtful=True) if isinstance(statement, Command) else statement


def _with_redirects(
    body: Statement | None, redirects: tuple[Redirect, ...], span: Span
) -> Statement:
    if body is None:
        return Command((), span, redirects=redirects)
    if isinstance(body, Command):
        return replace(body, redirects=(*body.redirects, *redirects), span=body.span)
    return Group((body,), span, redirects=redirects)
