"""tf.distributed does not exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from allranks.lint.finding import ERROR, Edit, Finding
from allranks.lint.python_file import PythonFile
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule

RULE = Rule(
    id="AR809",
    name="tensorflow-name",
    title="The module is called tf.distribute",
    why="""TensorFlow's strategies are in tf.distribute, without a d at the end. tf.distributed stops with an
    AttributeError when the line is reached.""",
    severity=ERROR,
    symptoms=("module 'tensorflow' has no attribute 'distributed'",),
    bad="import tensorflow as tf\nstrategy = tf.distributed.MultiWorkerMirroredStrategy()\n",
    good="import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n",
    clean=("import torch as tf\ntf.distributed.init_process_group()\n",),
    example="train.py",
)


def check_python(file: PythonFile, launch: Launched | None) -> Iterator[Finding]:
    """The attribute ``distributed`` of TensorFlow."""
    for node in file.nodes:
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if file.full_name(node) == "tensorflow.distributed":
            place = file.span(node)
            yield RULE.at(
                place,
                "TensorFlow has no module distributed.",
                help="Write tf.distribute.",
                fix=[Edit(place, place.text.removesuffix("d"))],
            )
