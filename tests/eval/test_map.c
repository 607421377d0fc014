/*
 * test_map.c - the drawing of kept positions. Its rows show the positions of the lanes, in files of
 * a bounded size, for any shape and any name. A file is written whole or not at all.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include <map.h>

#include "testing.h"

#include "alloc_fail.h"
#include "svg_check.h"

#define PIECES_MAX 4000

/* ---- made-up lanes ---- */

enum pattern { NOTHING, EVERYTHING, ENDS, RANDOM, STRIPES };

struct lanes {
    struct map map;
    enum pattern pattern;
    double share; /* of RANDOM */
};

static bool holds(const struct lanes *l, int32_t layer, int32_t head, int32_t position)
{
    uint64_t seed = ((uint64_t)layer << 52) ^ ((uint64_t)head << 40) ^ (uint64_t)position;
    switch (l->pattern) {
    case NOTHING:
        return false;
    case EVERYTHING:
        return true;
    case ENDS:
        return position < 4 || position >= l->map.n_token - 100 - head;
    case RANDOM:
        return (double)rng_below(&seed, 1 << 20) < l->share * (1 << 20);
    case STRIPES:
        return position % 2 == layer % 2;
    }
    return false;
}

static int32_t lane(void *user, int32_t layer, int32_t head, int32_t *positions)
{
    const struct lanes *l = user;
    int32_t n = 0;
    for (int32_t i = 0; i < l->map.n_token; i++)
        if (holds(l, layer, head, i))
            positions[n++] = i;
    return n;
}

static struct eval_text draw(struct lanes *l)
{
    err = (pith_error){0};
    struct eval_text svg = {0};
    l->map.user = l;
    l->map.lane = lane;
    if (l->map.model == NULL)
        l->map.model = "made up";
    if (map_draw(&l->map, &svg, &err) != PITH_OK)
        fail_msg("%s", err.message);
    svg_check(svg.data, svg.len);
    return svg;
}

/* Positions of a column, as the drawing says it. */
static int32_t bin_of(const char *svg)
{
    const char *at = strstr(svg, ">a column is ");
    return at != NULL ? atoi(at + strlen(">a column is ")) : 1;
}

/* Every column of a row is at the level that the entries of its lanes say. */
static void check_row(const struct lanes *l, const char *svg, const char *id, int32_t layer,
                      int32_t head, int32_t n_head)
{
    static struct svg_piece pieces[PIECES_MAX];
    int32_t n = svg_row(svg, id, pieces, PIECES_MAX), bin = bin_of(svg), n_token = l->map.n_token;
    int *level = calloc((size_t)n_token, sizeof(*level));
    assert_non_null(level);
    for (int32_t i = 0; i < n; i++)
        for (int32_t p = pieces[i].begin; p < pieces[i].end; p++) {
            assert_true(p < n_token && level[p] == 0);
            level[p] = pieces[i].level;
        }
    for (int32_t begin = 0; begin < n_token; begin += bin) {
        int32_t kept = 0, end = begin + bin < n_token ? begin + bin : n_token;
        for (int32_t p = begin; p < end; p++) {
            assert_int_equal(level[p], level[begin]);
            for (int32_t h = head; h < head + n_head; h++)
                kept += holds(l, layer, h, p);
        }
        int32_t most = (end - begin) * n_head;
        int want = kept == 0 ? 0 : kept == most ? 8 : 1 + 7 * kept / most;
        if (level[begin] != want)
            fail_msg("%s: positions %d to %d: %d of %d entries are drawn as %d, not %d", id, begin,
                     end - 1, kept, most, level[begin], want);
    }
    free(level);
}

static void check_rows(const struct lanes *l, const char *svg)
{
    char id[32];
    for (int32_t layer = 0; layer < l->map.n_layer; layer++)
        for (int32_t head = 0; head < l->map.n_head; head++) {
            snprintf(id, sizeof(id), "l%dh%d", layer, head);
            check_row(l, svg, id, layer, head, 1);
        }
}

/* ---- shapes ---- */

TEST(rows_are_what_lanes_hold)
{
    static const enum pattern patterns[] = {NOTHING, EVERYTHING, ENDS, RANDOM, STRIPES};
    static const int32_t lengths[] = {1, 2, 7, 101, 500, 1100};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        for (size_t j = 0; j < sizeof(lengths) / sizeof(lengths[0]); j++) {
            struct lanes l = {.map = {.n_layer = 3, .n_head = 2, .n_token = lengths[j]},
                              .pattern = patterns[i],
                              .share = 0.4};
            struct eval_text svg = draw(&l);
            assert_int_equal(bin_of(svg.data), 1);
            check_rows(&l, svg.data);
            eval_text_free(&svg);
        }
}

/* Columns of several positions, the last one narrower. */
TEST(columns_hold_several_positions)
{
    static const int32_t lengths[] = {1101, 2203, 5000, 100003};
    for (size_t j = 0; j < sizeof(lengths) / sizeof(lengths[0]); j++)
        for (int pattern = ENDS; pattern <= STRIPES; pattern++) {
            struct lanes l = {.map = {.n_layer = 2, .n_head = 3, .n_token = lengths[j]},
                              .pattern = (enum pattern)pattern,
                              .share = 0.3};
            struct eval_text svg = draw(&l);
            assert_true(bin_of(svg.data) > 1);
            check_rows(&l, svg.data);
            eval_text_free(&svg);
        }
}

/* A file of any policy stays small; one that keeps long stretches is far from the limit. */
TEST(a_file_stays_small)
{
    for (int pattern = ENDS; pattern <= STRIPES; pattern++) {
        struct lanes l = {.map = {.n_layer = 28, .n_head = 8, .n_token = 32768, .n_prompt = 30000},
                          .pattern = (enum pattern)pattern,
                          .share = 0.25};
        struct eval_text svg = draw(&l);
        if (svg.len > MAP_BYTES_MAX)
            fail_msg("pattern %d: %zu bytes", pattern, svg.len);
        if (pattern == ENDS) {
            assert_true(svg.len < 100000);
            assert_int_equal(bin_of(svg.data), 30);
        }
        check_row(&l, svg.data, "l27h7", 27, 7, 1);
        check_row(&l, svg.data, "l0h3", 0, 3, 1);
        eval_text_free(&svg);
    }
}

/* More lanes than rows: heads next to each other share one. */
TEST(heads_share_a_row_where_there_are_many)
{
    struct lanes l = {
        .map = {.n_layer = 100, .n_head = 33, .n_token = 300}, .pattern = RANDOM, .share = 0.5};
    struct eval_text svg = draw(&l);
    check_row(&l, svg.data, "l0h0-3", 0, 0, 4);
    check_row(&l, svg.data, "l99h28-31", 99, 28, 4);
    check_row(&l, svg.data, "l99h32", 99, 32, 1);
    eval_text_free(&svg);
    l = (struct lanes){.map = {.n_layer = 2000, .n_head = 2, .n_token = 3}, .pattern = ENDS};
    svg = draw(&l);
    check_row(&l, svg.data, "l1999h0-1", 1999, 0, 2);
    eval_text_free(&svg);
}

TEST(refuses_to_draw_nothing)
{
    struct eval_text svg = {0};
    struct map map = {.model = "", .n_layer = 1, .n_head = 1, .lane = lane};
    assert_int_equal(map_draw(&map, &svg, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "0 tokens"));
    assert_int_equal(svg.len, 0);
}

/* ---- words ---- */

static void expect_words(const struct eval_text *svg, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strstr(svg->data, *words) == NULL)
            fail_msg("the map does not have \"%s\"", *words);
}

TEST(the_legend_tells_policy_and_figures)
{
    static const char *const words[] = {
        "<title id=\"map-title\">Entries of the KV cache that stayed, by layer and head: made up<",
        "--keep triattention:v3,budget=400<",
        "budget 400 entries per lane",
        "slack 128",
        "8 segments",
        "all layers and heads keep the same positions",
        ">1,000 tokens",
        "10.4 % of the entries kept (627 of 6,000)", /* 3 * (104 + 105) */
        "895 tokens (89.5 %) evicted from every lane",
        "5 rounds, the first at 528 tokens",
        ">prompt: 900 tokens<",
        ">generated: 100 tokens<",
        ">prefix: the first 128 always stay<",
        ">window: the last 128 always stay<",
        "layer 2, KV head 1: 105 of 1,000",
        "position in the text, tokens",
        "@media (prefers-color-scheme:dark){",
        NULL,
    };
    struct lanes l = {.map = {.keep = "triattention:v3,budget=400",
                              .n_layer = 3,
                              .n_head = 2,
                              .n_token = 1000,
                              .n_prompt = 900},
                      .pattern = ENDS};
    assert_int_equal(pith_keep_get_rules(l.map.keep, &l.map.rules, &err), PITH_OK);
    l.map.stats = (pith_keep_stats){.rounds = 5, .first_round_at = 528, .budget = 400};
    struct eval_text svg = draw(&l);
    expect_words(&svg, words);
    eval_text_free(&svg);
}

TEST(the_full_cache_is_drawn_whole)
{
    static const char *const words[] = {"--keep none<", "the full cache: nothing is evicted",
                                        "100.0 % of the entries kept (60 of 60)", NULL};
    struct lanes l = {.map = {.n_layer = 3, .n_head = 2, .n_token = 10, .n_prompt = 10},
                      .pattern = EVERYTHING};
    struct eval_text svg = draw(&l);
    expect_words(&svg, words);
    assert_null(strstr(svg.data, "always stay"));
    assert_null(strstr(svg.data, ">generated"));
    eval_text_free(&svg);
}

/* Names that are no XML, and a policy longer than the page is wide. */
TEST(escapes_hostile_names)
{
    char keep[600] = "triattention:stats=", file[580];
    memset(file, 'x', sizeof(file) - 1);
    file[sizeof(file) - 1] = '\0';
    strcat(keep, file);
    struct lanes l = {.map = {.model = "<a & \"b\" 'c'>\x01\xff\xc3",
                              .keep = keep,
                              .n_layer = 1,
                              .n_head = 1,
                              .n_token = 5},
                      .pattern = EVERYTHING};
    struct eval_text svg = draw(&l);
    static const char *const words[] = {"&lt;a &amp; &quot;b&quot; &#39;c&#39;&gt;", NULL};
    expect_words(&svg, words);
    eval_text_free(&svg);
}

/* ---- the page ---- */

/* The page has each position of each lane, and names that cannot leave its JSON. */
TEST(the_page_has_what_lanes_hold)
{
    static const char begin[] = "id=\"data\">\n";
    struct lanes l = {.map = {.model = "</script><b>",
                              .n_layer = 2,
                              .n_head = 3,
                              .n_token = 700,
                              .n_prompt = 600,
                              .lane = lane},
                      .pattern = RANDOM,
                      .share = 0.6};
    struct eval_text page = {0};
    l.map.user = &l;
    assert_int_equal(map_page(&l.map, &page, &err), PITH_OK);
    const char *json = strstr(page.data, begin) + strlen(begin), *end = strstr(json, "\n</script>");
    assert_null(memchr(json, '<', (size_t)(end - json)));
    json_t *data = json_loadb(json, (size_t)(end - json), 0, NULL),
           *lanes = json_object_get(data, "lanes");
    assert_string_equal(json_string_value(json_object_get(data, "model")), l.map.model);
    assert_string_equal(json_string_value(json_object_get(data, "keep")), "none");
    assert_int_equal(json_integer_value(json_object_get(data, "n_prompt")), 600);
    assert_int_equal(json_array_size(lanes), 6);
    for (int32_t i = 0; i < 6; i++) {
        char *at = (char *)json_string_value(json_array_get(lanes, (size_t)i));
        for (int32_t p = 0; p < 700;) {
            long first = *at != '\0' ? strtol(at, &at, 10) : 700;
            long last = *at != '\0' ? strtol(at + 1, &at, 10) : 700;
            at += *at == ',';
            for (; p < first; p++)
                assert_false(holds(&l, i / 3, i % 3, p));
            for (; p <= last && p < 700; p++)
                assert_true(holds(&l, i / 3, i % 3, p));
        }
        assert_int_equal(*at, '\0');
    }
    json_decref(data);
    eval_text_free(&page);
    l.map.n_token = 0;
    assert_int_equal(map_page(&l.map, &page, &err), PITH_INVALID);
}

/* ---- memory ---- */

TEST(failing_memory_is_told)
{
    struct lanes l = {.map = {.model = "made up", .n_layer = 2, .n_head = 2, .n_token = 400},
                      .pattern = RANDOM,
                      .share = 0.5};
    l.map.user = &l;
    l.map.lane = lane;
    for (int form = 0; form < 2; form++) {
        int64_t n = 1;
        for (;; n++) {
            struct eval_text out = {0};
            alloc_fail_at(n);
            pith_status status = (form == 0 ? map_draw : map_page)(&l.map, &out, &err);
            alloc_fail_at(0);
            eval_text_free(&out);
            if (status == PITH_OK)
                break;
            assert_int_equal(status, PITH_NOMEM);
        }
        assert_true(n > 5);
    }
}

/* ---- files ---- */

static char folder[64];

static void folder_make(void)
{
    alloc_fail_begin();
    strcpy(folder, "/tmp/pith-map-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static void folder_remove(void)
{
    char line[128];
    snprintf(line, sizeof(line), "rm -rf '%s'", folder);
    assert_int_equal(system(line), 0);
}

TEST_GROUP(folder_make, folder_remove);

static const char *in_folder(const char *name, char *buf)
{
    snprintf(buf, 128, "%s/%s", folder, name);
    return buf;
}

static void expect_file(const char *path, const char *text)
{
    char *found;
    size_t len;
    assert_int_equal(eval_read_file(path, &found, &len, &err), PITH_OK);
    assert_string_equal(found, text);
    free(found);
}

TEST(a_file_is_written_whole)
{
    char path[128], wrong[160];
    struct eval_text text = {0}, other = {0};
    eval_text_add(&text, "one");
    eval_text_add(&other, "another");
    in_folder("a.svg", path);
    assert_int_equal(eval_check_file(path, &err), PITH_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(eval_write_file(path, &text, &err), PITH_OK);
    expect_file(path, "one");
    assert_int_equal(eval_check_file(path, &err), PITH_OK);
    expect_file(path, "one");
    assert_int_equal(eval_write_file(path, &other, &err), PITH_OK);
    expect_file(path, "another");
    assert_int_equal(rmdir(folder), -1);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else was left there */
    assert_int_equal(mkdir(folder, 0700), 0);

    snprintf(wrong, sizeof(wrong), "%s/no/a.svg", folder);
    assert_int_equal(eval_check_file(wrong, &err), PITH_IO);
    assert_non_null(strstr(err.message, "No such file or directory"));
    assert_int_equal(eval_write_file(wrong, &text, &err), PITH_IO);
    assert_int_equal(eval_check_file(folder, &err), PITH_IO);
    assert_non_null(strstr(err.message, "Is a directory"));
    assert_int_equal(eval_write_file(folder, &text, &err), PITH_IO);
    eval_text_free(&text);
    eval_text_free(&other);
}

TEST(a_full_disk_is_told)
{
    struct eval_text text = {0};
    SKIP_WITHOUT("/dev/full");
    eval_text_add(&text, "one");
    assert_int_equal(eval_check_file("/dev/full", &err), PITH_OK);
    assert_int_equal(eval_write_file("/dev/full", &text, &err), PITH_IO);
    assert_non_null(strstr(err.message, "/dev/full: cannot write: No space left on device"));
    eval_text_free(&text);
}
