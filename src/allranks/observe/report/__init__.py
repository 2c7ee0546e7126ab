"""A report of a run: what was requested, what was used, and what to change next time.

``run_facts`` gathers the facts (``external_job`` those of a job that allranks did not start), ``advice``
judges them, ``html_report`` and ``text_reports`` show them; ``report_files`` puts these together.
"""
