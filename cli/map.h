/*
 * map.h - which positions each layer and KV head kept, drawn as SVG: one row per lane, time from
 * left to right. The drawing needs no script and no other file, and follows the reader's choice of
 * light or dark.
 *
 * A program can read the lanes from it: the paths of row "l3h1" (layer 3, KV head 1) are rectangles
 * in units of positions. "M0 4h4m250 0h36" says that entries 0 to 3 and 254 to 289 are there. Class
 * k8 is kept whole; k1 .. k7 are columns of several positions of which a part is kept.
 */
#ifndef CLI_MAP_H
#define CLI_MAP_H

#include <eval.h>
#include "pith/policy.h"

/* The positions that a lane holds, each below map.n_token, into positions [map.n_token]; returns
   their number. */
typedef int32_t map_lane_fn(void *user, int32_t layer, int32_t head, int32_t *positions);

/* The picture's input. Strings are borrowed for the call. */
struct map {
    const char *model;     /* its name; "" for none */
    const char *keep;      /* the policy as it was given; NULL: none */
    pith_keep_rules rules; /* what that means */
    pith_keep_stats stats;
    int32_t n_layer;
    int32_t n_head;  /* KV heads */
    int32_t n_token; /* at least 1 */
    int32_t n_prompt;
    map_lane_fn *lane; /* called several times for each lane */
    void *user;
};

#define MAP_BYTES_MAX 300000 /* of a drawing: more makes its columns wider, down to 64 of them */

/* Adds the drawing to *svg. INVALID for a map without lanes or tokens; NOMEM. */
pith_status map_draw(const struct map *map, struct eval_text *svg, pith_error *err);

/* Adds the page that shows the same (page/sheet.js), every position of it. As map_draw. */
pith_status map_page(const struct map *map, struct eval_text *html, pith_error *err);

#endif
