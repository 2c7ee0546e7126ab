"""Pages and Markdown that stand alone: one style, tables, and other people's text made harmless."""
