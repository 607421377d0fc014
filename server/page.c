/*
 * page.c - what GET / shows where no page was built in.
 */
#include "page.h"

const char server_page[] =
    "<!doctype html><meta charset=\"utf-8\"><title>Pith</title><p>Pith serves a model here: "
    "docs/server.md lists the endpoints.</p>\n";
const size_t server_page_size = sizeof(server_page) - 1;
