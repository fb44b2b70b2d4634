"""The server's side of the query editor: drawings and the texts that they stand for, work in threads with a deadline, and what the editor
asks of the program (`workbench.Workbench`, which ``headrace.api.editor`` implements).

    drawing.py  --texts.py-->  SQL or PySpark text  --pages/editor.py, runs.py-->  workbench: check, sample, start, replace
"""
