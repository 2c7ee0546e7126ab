"""Self-contained HTML pages and Markdown: one style, tables, escaped text."""
