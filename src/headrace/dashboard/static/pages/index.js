// The pages about a query, in the order of the navigation. A page is {id, title, Page, shownFor?(query)}.

import { elasticity } from "./elasticity.js";
import { faults } from "./faults.js";
import { overview } from "./overview.js";
import { query } from "./query.js";
import { state } from "./state.js";

export { overview };
// Only the editor is loaded when it is opened: it is large, and mostly off.
export const editorPage = { id: "editor", title: "Editor", load: () => import("./editor.js").then((module) => module.editor.Page) };
export const pages = [query, state, elasticity, faults];
