/*
 * picture.c - lanes as rows, pages as cells. Its data comes from the public account alone
 * (pith_seq_lane, pith_engine_kv_stats). So the picture is also a check: the lanes' bytes add up to
 * the pool's.
 */
#define _POSIX_C_SOURCE 200809L

#include "picture.h"
#include "pith/inspect.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 24 /* lanes drawn; the rest is summed up */
#define LABEL_WIDTH 17
#define BYTES_WIDTH 12
#define CELLS_MIN 10
#define CELLS_MAX 160

struct pen {
    FILE *out;
    bool utf8;
    bool colour;
    int n_cell; /* cells of a row */
};

static struct pen make_pen(FILE *out)
{
    struct pen pen = {.out = out, .utf8 = cli_is_utf8()};
    pen.colour = cli_is_terminal(fileno(out)) && getenv("NO_COLOR") == NULL;
    pen.n_cell = cli_columns() - LABEL_WIDTH - BYTES_WIDTH;
    if (pen.n_cell < CELLS_MIN)
        pen.n_cell = CELLS_MIN;
    if (pen.n_cell > CELLS_MAX)
        pen.n_cell = CELLS_MAX;
    return pen;
}

static void set_colour(const struct pen *pen, int code)
{
    if (pen->colour)
        fprintf(pen->out, "\033[%dm", code);
}

/* A cell filled to fill in [0, 1], in eighths. */
static const char *cell(const struct pen *pen, double fill)
{
    static const char *const blocks[] = {"\u2591", "\u2581", "\u2582", "\u2583", "\u2584",
                                         "\u2585", "\u2586", "\u2587", "\u2588"};
    static const char *const ascii[] = {".", "-", "-", "=", "=", "+", "+", "*", "#"};
    int eighths = fill <= 0.0 ? 0 : 1 + (int)(fill * 7.999);
    if (fill >= 1.0)
        eighths = 8;
    else if (eighths > 7)
        eighths = 7;
    return pen->utf8 ? blocks[eighths] : ascii[eighths];
}

/* ---- lanes ---- */

struct lane {
    int32_t layer;
    int32_t head;
    pith_lane_info info;
    int32_t *positions; /* [info.n_entry] */
};

/* The letter of the mark that a range of slots holds a position of; 0: none. */
static char mark_of(const struct lane *lane, int32_t begin, int32_t end,
                    const struct picture_mark *marks)
{
    char letter = 0;
    for (const struct picture_mark *m = marks; m != NULL && m->what != NULL; m++)
        for (int32_t i = begin; i < end; i++)
            if (lane->positions[i] >= m->begin && lane->positions[i] < m->end)
                letter = (char)(m->what[0] & ~0x20);
    return letter;
}

static void draw_cells(const struct pen *pen, const struct lane *lane, int32_t page_len,
                       const struct picture_mark *marks)
{
    int32_t per_cell = (lane->info.n_page + pen->n_cell - 1) / pen->n_cell;
    int32_t step = page_len * (per_cell > 0 ? per_cell : 1);
    int drawn = 0;
    for (int32_t begin = 0; begin < lane->info.n_entry; begin += step, drawn++) {
        int32_t end = begin + step < lane->info.n_entry ? begin + step : lane->info.n_entry;
        char letter = mark_of(lane, begin, end, marks);
        set_colour(pen, 31 + (lane->layer + 2) % 6);
        if (letter != 0) {
            set_colour(pen, 7);
            fputc(letter, pen->out);
        } else {
            fputs(cell(pen, (double)(end - begin) / step), pen->out);
        }
        set_colour(pen, 0);
    }
    fprintf(pen->out, "%*s", pen->n_cell - drawn, "");
}

static void draw_lane(const struct pen *pen, const struct lane *lane, int32_t page_len,
                      const struct picture_mark *marks)
{
    char label[32], bytes[32];
    if (lane->head == 0)
        snprintf(label, sizeof(label), "layer %d head 0", lane->layer);
    else
        snprintf(label, sizeof(label), "head %d", lane->head);
    fprintf(pen->out, "%*s ", LABEL_WIDTH - 1, label);
    draw_cells(pen, lane, page_len, marks);
    fprintf(pen->out, "%*s\n", BYTES_WIDTH, cli_bytes(lane->info.bytes, bytes));
}

/* Draws the first lanes; returns the bytes of all. */
static int64_t draw_lanes(const struct pen *pen, const struct session *s,
                          const struct picture_mark *marks)
{
    int32_t cap = pith_seq_length(s->seq), n_row = 0;
    int64_t bytes = 0, hidden = 0, n_hidden = 0;
    struct lane lane = {.positions = cli_alloc((size_t)cap, sizeof(int32_t))};
    for (lane.layer = 0; lane.layer < s->info.n_layer_kv; lane.layer++)
        for (lane.head = 0; lane.head < s->info.n_head_kv; lane.head++) {
            if (pith_seq_lane(s->seq, lane.layer, lane.head, &lane.info, lane.positions, cap) !=
                PITH_OK)
                continue;
            bytes += lane.info.bytes;
            if (n_row++ < ROWS_MAX) {
                draw_lane(pen, &lane, s->page_len, marks);
            } else {
                hidden += lane.info.bytes;
                n_hidden++;
            }
        }
    if (n_hidden > 0)
        fprintf(pen->out, "%*s and %lld more lanes of %lld bytes\n", LABEL_WIDTH - 1, "...",
                (long long)n_hidden, (long long)hidden);
    free(lane.positions);
    return bytes;
}

/* ---- the account ---- */

static void draw_budget(const struct pen *pen, const pith_kv_stats *kv, int32_t page_len)
{
    char used[32], reserved[32];
    double share = (double)kv->used_bytes / (double)kv->reserved_bytes;
    fprintf(pen->out, "%*s ", LABEL_WIDTH - 1, "KV memory");
    set_colour(pen, share > 0.9 ? 31 : 32);
    for (int i = 0; i < pen->n_cell; i++) {
        double fill = share * pen->n_cell - i;
        fputs(fill >= 0.5 ? cell(pen, 1.0) : cell(pen, 0.0), pen->out);
    }
    set_colour(pen, 0);
    fprintf(pen->out, "%*.0f %%\n", BYTES_WIDTH - 2, 100.0 * share);
    fprintf(pen->out, "%*s %s of %s: %lld of %lld pages, %lld bytes each, %d tokens a page\n",
            LABEL_WIDTH - 1, "", cli_bytes(kv->used_bytes, used),
            cli_bytes(kv->reserved_bytes, reserved), (long long)kv->n_page_used,
            (long long)kv->n_page, (long long)kv->page_bytes, page_len);
}

void picture_print(FILE *out, const struct session *s, const struct picture_mark *marks)
{
    struct pen pen = make_pen(out);
    pith_kv_stats kv;
    pith_engine_kv_stats(s->engine, &kv);
    fputc('\n', out);
    int64_t lanes = draw_lanes(&pen, s, marks);
    fputc('\n', out);
    draw_budget(&pen, &kv, s->page_len);
    fprintf(out, "%*s lanes %lld bytes %s the pool's %lld; live %lld, slack %lld; tables %lld\n",
            LABEL_WIDTH - 1, "", (long long)lanes, lanes == kv.used_bytes ? "=" : "against",
            (long long)kv.used_bytes, (long long)kv.live_bytes,
            (long long)(kv.used_bytes - kv.live_bytes), (long long)kv.table_bytes);
    fprintf(out, "%*s %s a full page, %s part of one, %s free", LABEL_WIDTH - 1, "",
            cell(&pen, 1.0), cell(&pen, 0.4), cell(&pen, 0.0));
    for (const struct picture_mark *m = marks; m != NULL && m->what != NULL; m++)
        fprintf(out, ", %c %s", m->what[0] & ~0x20, m->what);
    fputc('\n', out);
}
