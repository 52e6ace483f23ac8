"""The JSON of our own `/api/*` routes: one module per answer, one TypedDict per object.

`tools/make_api_types.py` makes `web/src/api-types.ts` and the tables of `docs/api.md` from them; the sentence
below a key is its documentation. A key that is NotRequired is left out where its value is not known.
"""
