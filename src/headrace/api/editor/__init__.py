"""The program's side of the monitor's query editor: texts become DataFrames, which are checked, tried on a sample, started, or take the
place of a running query. Everything runs in the program's session, in threads of the monitor (`headrace.dashboard.editor.runs`).

    text --texts.py--> DataFrames --checking.py--> marks, columns, graph, plan, cost
                                  --sampling.py--> first results
                                  --workbench.py--> start, replace
"""
