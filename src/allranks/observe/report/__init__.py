"""A run as one page to hand on: what was asked for, what was used, and what to change next time.

Facts are gathered (``facts``, or ``foreign`` for a job of others), judged (``advice``) and shown
(``html``, ``markdown``, ``record`` for JSON); ``make`` puts these together.
"""
