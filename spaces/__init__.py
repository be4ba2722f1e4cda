"""Gradio Spaces: one per folder."""
