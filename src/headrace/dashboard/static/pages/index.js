// The pages about a query, in the order of the navigation. A page is {id, title, Page, shownFor?(query)}.

import { overview } from "./overview.js";
import { query } from "./query.js";

export { overview };
export const pages = [query];
