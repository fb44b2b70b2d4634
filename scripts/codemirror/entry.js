// What the monitor's editor uses of CodeMirror. scripts/vendor-codemirror makes one file of it.

export { autocompletion, acceptCompletion, closeBrackets, closeBracketsKeymap, completionKeymap, startCompletion } from "@codemirror/autocomplete";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { python, localCompletionSource } from "@codemirror/lang-python";
export { keywordCompletionSource, schemaCompletionSource, sql, SQLDialect, StandardSQL } from "@codemirror/lang-sql";
export { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting, syntaxTree } from "@codemirror/language";
export { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
export { Compartment, EditorState } from "@codemirror/state";
export { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers, placeholder } from "@codemirror/view";
export { tags } from "@lezer/highlight";
