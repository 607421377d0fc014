/*
 * map.c - the drawing of which positions each lane kept. It knows no engine: positions come from
 * the caller, texts and shapes go out.
 *
 * Invariant: what is drawn is what the lanes hold. Positions finer than a pixel share a column
 * whose opacity is the part that is kept. Until the file is small, columns become wider; rows never
 * lose entries.
 *
 * Colours stand in classes, without variables, so that programs which draw SVG but know little CSS
 * show the light ones. They are the report's colours (page/look.css).
 */
#include "map.h"
#include "svg.h"

#include <sheet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 1200.0
#define LEFT 118.0
#define PLOT 990.0 /* pixels of all positions */
#define RIGHT (LEFT + PLOT)
#define PROMPT_Y 148.0    /* bars above the rows: prompt and generated, */
#define ALWAYS_Y 184.0    /* and what always stays */
#define ROWS_BELOW 26.0   /* from the last of them to the rows */
#define ROWS_HEIGHT 620.0 /* of all rows, where they are neither thick nor thin then */
#define ROW_MIN 2.0
#define ROW_MAX 34.0
#define ROW_LABELLED 13.0 /* a row that its head's name fits beside */
#define ROW_GAPPED 6.0    /* thick enough to lose a pixel to the gap */
#define LAYER_GAP 4.0
#define ROWS_MAX 1024    /* more lanes than that share rows */
#define COLUMNS_MAX 1100 /* not much less than a pixel each */
#define COLUMNS_MIN 64
#define N_LEVEL 8
#define PROFILE_HEIGHT 46.0
#define TICK_WIDTH 90.0
#define SPAN_WIDTH_MIN 2.0
#define EDGE_INSET 5.0   /* an edge nearer to the end than that would hide what it marks */
#define POLICY_CHARS 118 /* of the policy's text: what fits */

struct drawing {
    const struct map *m;
    struct eval_text *t;
    double scale; /* pixels per position */
    int32_t bin;  /* positions of a column */
    int32_t n_column;
    int32_t per_row; /* KV heads of a row */
    int32_t rows;    /* of a layer */
    double row_height;
    double top;             /* of the first row */
    double bottom;          /* of the last row */
    int32_t n_prompt;       /* positions below are the prompt */
    int32_t first;          /* positions below always stay, because of */
    const char *first_name; /* this option */
    int32_t window;         /* this number of last positions always stays */
    int32_t *positions;     /* [n_token] owned, of one lane */
    uint32_t *row;          /* [n_token] owned, entries per column of one row */
    uint8_t *level;         /* [n_token] owned, of the columns of one row */
    uint32_t *all;          /* [n_token] owned, entries per position of all lanes */
    int64_t *n_of_layer;    /* [n_layer] owned, entries */
    int64_t n_kept;         /* entries of all lanes */
    int32_t n_gone;         /* tokens that no lane has an entry of */
};

/* ---- counting ---- */

/* Adds the entries of a lane to a row of columns; returns how many there are. */
static int32_t count_lane(const struct drawing *d, int32_t layer, int32_t head, uint32_t *columns)
{
    int32_t n = d->m->lane(d->m->user, layer, head, d->positions);
    for (int32_t i = 0; i < n; i++)
        columns[d->positions[i] / d->bin]++;
    return n;
}

/* Finds the properties that all lanes have in common. */
static void survey(struct drawing *d)
{
    d->bin = 1;
    for (int32_t l = 0; l < d->m->n_layer; l++)
        for (int32_t h = 0; h < d->m->n_head; h++)
            d->n_kept += count_lane(d, l, h, d->all);
    for (int32_t i = 0; i < d->m->n_token; i++)
        d->n_gone += d->all[i] == 0;
}

static int32_t bin_end(const struct drawing *d, int32_t column)
{
    int64_t end = ((int64_t)column + 1) * d->bin;
    return end < d->m->n_token ? (int32_t)end : d->m->n_token;
}

/* The level of each column: 0 where nothing is kept, N_LEVEL everything, between them the share. */
static void set_levels(const struct drawing *d, int32_t n_lane)
{
    for (int32_t i = 0; i < d->n_column; i++) {
        uint64_t n = d->row[i];
        uint64_t most = (uint64_t)(bin_end(d, i) - i * d->bin) * (uint64_t)n_lane;
        d->level[i] = n == 0 ? 0 : n >= most ? N_LEVEL : (uint8_t)(1 + n * (N_LEVEL - 1) / most);
    }
}

/* ---- texts ---- */

/* A text in pieces that are joined by a dot. */
static void add_piece(char *text, size_t cap, const char *piece)
{
    size_t len = strlen(text);
    snprintf(text + len, cap - len, "%s%s", len > 0 ? "  \xc2\xb7  " : "", piece);
}

static void describe_rules(const struct map *m, char *text, size_t cap)
{
    static const struct {
        const char *granularity, *meaning;
    } meanings[] = {
        {"all", "all layers and heads keep the same positions"},
        {"head", "heads of one index keep the same positions in every layer"},
        {"layer", "the heads of a layer keep the same positions"},
        {"layer-head", "each head keeps positions of its own"},
    };
    char piece[96], count[32];
    text[0] = '\0';
    if (m->rules.policy == NULL) {
        add_piece(text, cap, "the full cache: nothing is evicted");
        return;
    }
    snprintf(piece, sizeof(piece), "budget %s entries per lane",
             figure_count(m->stats.budget, count));
    add_piece(text, cap, piece);
    snprintf(piece, sizeof(piece), "slack %s", figure_count(m->rules.slack, count));
    add_piece(text, cap, piece);
    snprintf(piece, sizeof(piece), "%d segments", m->rules.segments);
    if (m->rules.segments > 0)
        add_piece(text, cap, piece);
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
        if (strcmp(meanings[i].granularity, m->rules.granularity) == 0)
            add_piece(text, cap, meanings[i].meaning);
}

static double percent(double part, double whole)
{
    return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

static void describe_numbers(const struct drawing *d, char *text, size_t cap)
{
    const struct map *m = d->m;
    char piece[128], a[32], b[32];
    double most = (double)m->n_token * m->n_layer * m->n_head;
    snprintf(text, cap, "%s tokens", figure_count(m->n_token, a));
    snprintf(piece, sizeof(piece), "%.1f %% of the entries kept (%s of %s)",
             percent((double)d->n_kept, most), figure_count((double)d->n_kept, a),
             figure_count(most, b));
    add_piece(text, cap, piece);
    if (m->rules.policy == NULL)
        return;
    snprintf(piece, sizeof(piece), "%s tokens (%.1f %%) evicted from every lane",
             figure_count(d->n_gone, a), percent(d->n_gone, m->n_token));
    add_piece(text, cap, piece);
    snprintf(piece, sizeof(piece), "%s rounds, the first at %s tokens",
             figure_count((double)m->stats.rounds, a), figure_count(m->stats.first_round_at, b));
    add_piece(text, cap, m->stats.rounds > 0 ? piece : "no round yet");
}

/* ---- the frame ---- */

static void add_style(struct eval_text *t)
{
    static const char *const lines[] = {
        ".pith-map{max-width:100%;height:auto}",
        ".pith-map text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',Arial,",
        "sans-serif;fill:#515b66}",
        ".pith-map .title{font-size:20px;font-weight:600;fill:#1b1f24}",
        ".pith-map .policy{font:14px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;",
        "fill:#0068a8}",
        ".pith-map .line{font-size:14px;fill:#1b1f24}",
        ".pith-map .name{fill:#1b1f24}",
        ".pith-map .mid{text-anchor:middle}",
        ".pith-map .end{text-anchor:end}",
        ".pith-map .bg{fill:#fff}",
        ".pith-map .gone{fill:#e3e7ec}",
        ".pith-map .rows{stroke:#0068a8;fill:none;shape-rendering:crispEdges}",
        ".pith-map .profile,.pith-map .kept{fill:#0068a8}",
        ".pith-map .prompt{fill:#8792a0}",
        ".pith-map .generated{fill:#007a58}",
        ".pith-map .always{fill:#c04a00}",
        ".pith-map .axis{stroke:#515b66;fill:none}",
        ".pith-map .prompt-end{stroke:#1b1f24;stroke-dasharray:7 4;fill:none}",
        ".pith-map .always-end{stroke:#c04a00;stroke-dasharray:3 4;fill:none}",
        ".pith-map .halo{stroke:#fff;stroke-width:2;opacity:.45;fill:none}",
        ".pith-map .over{paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}",
        ".pith-map .k1{opacity:.24}.pith-map .k2{opacity:.34}.pith-map .k3{opacity:.44}",
        ".pith-map .k4{opacity:.54}.pith-map .k5{opacity:.64}.pith-map .k6{opacity:.74}",
        ".pith-map .k7{opacity:.84}",
        "@media (prefers-color-scheme:dark){",
        ".pith-map text{fill:#a3adb8}",
        ".pith-map .title,.pith-map .line,.pith-map .name{fill:#e8ebef}",
        ".pith-map .policy{fill:#5db4ee}",
        ".pith-map .bg{fill:#14171b}",
        ".pith-map .gone{fill:#2b3138}",
        ".pith-map .rows{stroke:#5db4ee}",
        ".pith-map .profile,.pith-map .kept{fill:#5db4ee}",
        ".pith-map .prompt{fill:#737e8b}",
        ".pith-map .generated{fill:#3fcfa3}",
        ".pith-map .always{fill:#ff9152}",
        ".pith-map .axis{stroke:#a3adb8}",
        ".pith-map .prompt-end{stroke:#e8ebef}",
        ".pith-map .always-end{stroke:#ff9152}",
        ".pith-map .halo,.pith-map .over{stroke:#14171b}",
        "}",
    };
    eval_text_add(t, "<style>\n");
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        eval_text_add(t, lines[i]);
        eval_text_add(t, "\n");
    }
    eval_text_add(t, "</style>\n");
}

static void add_rectangle(struct eval_text *t, const char *class_name, double x, double y,
                          double width, double height)
{
    eval_text_printf(t,
                     "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>\n",
                     class_name, x, y, width, height);
}

static void add_policy(struct eval_text *t, const struct map *m)
{
    eval_text_printf(t, "<text x=\"%.0f\" y=\"62\" class=\"policy\">--keep ", LEFT - 78.0);
    svg_escape_short(t, m->keep != NULL ? m->keep : "none", POLICY_CHARS);
    eval_text_add(t, "</text>\n");
}

/* The size, what is drawn in words, the style, and the lines above the drawing. */
static void begin(const struct drawing *d, double height)
{
    char rules[256], numbers[320];
    const struct map *m = d->m;
    struct eval_text *t = d->t;
    describe_rules(m, rules, sizeof(rules));
    describe_numbers(d, numbers, sizeof(numbers));
    eval_text_printf(t,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pith-map\" role=\"img\" "
                     "width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
                     "aria-labelledby=\"map-title map-desc\">\n<title id=\"map-title\">",
                     WIDTH, height, WIDTH, height);
    eval_text_add(t, "Entries of the KV cache that stayed, by layer and head");
    eval_text_add(t, m->model[0] != '\0' ? ": " : "");
    svg_escape(t, m->model);
    eval_text_add(t, "</title>\n<desc id=\"map-desc\">Rows are layers and within them KV heads, "
                     "from left to right positions of the text; kept ones are coloured. --keep ");
    svg_escape(t, m->keep != NULL ? m->keep : "none");
    eval_text_add(t, ": ");
    svg_escape(t, rules);
    eval_text_add(t, ". ");
    svg_escape(t, numbers);
    eval_text_add(t, ".</desc>\n");
    add_style(t);
    add_rectangle(t, "bg", 0, 0, WIDTH, height);
    eval_text_printf(t, "<text x=\"%.0f\" y=\"36\" class=\"title\">What the KV cache holds",
                     LEFT - 78.0);
    eval_text_add(t, m->model[0] != '\0' ? ": " : "");
    svg_escape_short(t, m->model, 60);
    eval_text_add(t, "</text>\n");
    add_policy(t, m);
    svg_text(t, LEFT - 78.0, 86, "line", rules);
    svg_text(t, LEFT - 78.0, 107, "line", numbers);
}

/* Whether a column can be kept in part. */
static bool has_parts(const struct drawing *d)
{
    return d->bin > 1 || d->per_row > 1;
}

/* Explains the colours, to the right of the title. */
static void draw_key(const struct drawing *d)
{
    static const struct {
        const char *class_name, *name;
        double x;
    } keys[] = {{"kept", "kept", 232}, {"gone", "evicted", 68}, {"kept k4", "in part", 155}};
    for (int i = 0; i < (has_parts(d) ? 3 : 2); i++) {
        double x = RIGHT - keys[i].x;
        if (i == 2)
            add_rectangle(d->t, "gone", x, 25, 13, 13);
        add_rectangle(d->t, keys[i].class_name, x, 25, 13, 13);
        svg_text(d->t, x + 19, 36, "name", keys[i].name);
    }
}

/* A bar above the rows from one position to another, and its name at one of its ends. */
static void draw_span(const struct drawing *d, const char *class_name, double y, int32_t first,
                      int32_t last, const char *name, bool at_end)
{
    double x = LEFT + first * d->scale, end = LEFT + last * d->scale;
    add_rectangle(d->t, class_name, x, y, end - x > SPAN_WIDTH_MIN ? end - x : SPAN_WIDTH_MIN, 6);
    svg_text(d->t, at_end ? RIGHT : x, y - 6, at_end ? "name over end" : "name over", name);
}

static void draw_edge(const struct drawing *d, const char *class_name, int32_t position, double top)
{
    double x = LEFT + position * d->scale;
    if (x - LEFT >= EDGE_INSET && RIGHT - x >= EDGE_INSET)
        eval_text_printf(d->t,
                         "<path class=\"halo\" d=\"M%.2f %.1fV%.1f\"/>"
                         "<path class=\"%s\" d=\"M%.2f %.1fV%.1f\"/>\n",
                         x, top, d->bottom, class_name, x, top, d->bottom);
}

/* Finds the entries that the rules never evict. */
static void find_always(struct drawing *d)
{
    const struct map *m = d->m;
    const pith_keep_rules *r = &m->rules;
    d->first = r->prefix > r->sinks ? r->prefix : r->sinks;
    d->first_name = r->prefix >= r->sinks ? "prefix" : "sinks";
    if (r->pin_prompt && d->n_prompt <= r->pin_most && d->n_prompt > d->first) {
        d->first = d->n_prompt;
        d->first_name = "pinned prompt";
    }
    d->first = d->first < m->n_token ? d->first : m->n_token;
    d->window = r->window < m->n_token ? r->window : m->n_token;
}

/* Which positions are the prompt, and which ones always stay. */
static void draw_spans(const struct drawing *d)
{
    char name[96], count[32];
    int32_t n = d->m->n_token;
    draw_edge(d, "always-end", d->first, ALWAYS_Y);
    draw_edge(d, "always-end", n - d->window, ALWAYS_Y);
    draw_edge(d, "prompt-end", d->n_prompt, PROMPT_Y);
    snprintf(name, sizeof(name), "prompt: %s tokens", figure_count(d->n_prompt, count));
    if (d->n_prompt > 0)
        draw_span(d, "prompt", PROMPT_Y, 0, d->n_prompt, name, false);
    snprintf(name, sizeof(name), "generated: %s tokens", figure_count(n - d->n_prompt, count));
    if (d->n_prompt < n)
        draw_span(d, "generated", PROMPT_Y, d->n_prompt, n, name, true);
    snprintf(name, sizeof(name), "%s: the first %s always stay", d->first_name,
             figure_count(d->first, count));
    if (d->first > 0)
        draw_span(d, "always", ALWAYS_Y, 0, d->first, name, false);
    snprintf(name, sizeof(name), "window: the last %s always stay", figure_count(d->window, count));
    if (d->window > 0)
        draw_span(d, "always", ALWAYS_Y, n - d->window, n, name, true);
}

/* The step of an axis with room for its labels: 1, 2 or 5 times a power of ten. */
static int32_t tick_step(double scale)
{
    int64_t step = 1;
    for (int i = 0; (double)step * scale < TICK_WIDTH && step < INT32_MAX / 10; i++)
        step = i % 3 == 1 ? step / 2 * 5 : step * 2;
    return (int32_t)step;
}

static void draw_axis(const struct drawing *d, double y)
{
    char text[96];
    int32_t step = tick_step(d->scale);
    eval_text_printf(d->t, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f", LEFT, y + 0.5, RIGHT);
    for (int64_t at = 0; at <= d->m->n_token; at += step)
        eval_text_printf(d->t, "M%.2f %.1fv6", LEFT + (double)at * d->scale, y + 0.5);
    eval_text_add(d->t, "\"/>\n");
    for (int64_t at = 0; at <= d->m->n_token; at += step)
        svg_text(d->t, LEFT + (double)at * d->scale, y + 21, "mid", figure_count((double)at, text));
    svg_text(d->t, (LEFT + RIGHT) / 2, y + 43, "name mid", "position in the text, tokens");
    snprintf(text, sizeof(text), "a column is %d position%s: the paler, the fewer kept", d->bin,
             d->bin > 1 ? "s" : "");
    if (has_parts(d))
        svg_text(d->t, RIGHT, y + 43, "end", text);
}

/* ---- the rows ---- */

/* A path of the columns of one level; those next to each other are one piece of it. */
static void draw_level(const struct drawing *d, double y, uint8_t level)
{
    int32_t pen = -1; /* where the last piece ends; -1 before the first */
    for (int32_t i = 0, j; i < d->n_column; i = j) {
        for (j = i + 1; j < d->n_column && d->level[j] == d->level[i]; j++)
            continue;
        if (d->level[i] != level)
            continue;
        if (pen < 0)
            eval_text_printf(d->t, "<path class=\"k%d\" d=\"M%d %g", level, i * d->bin, y);
        else
            eval_text_printf(d->t, "m%d 0", i * d->bin - pen);
        pen = bin_end(d, j - 1);
        eval_text_printf(d->t, "h%d", pen - i * d->bin);
    }
    if (pen >= 0)
        eval_text_add(d->t, "\"/>");
}

/* A row of one or several heads; returns its entries. */
static int64_t draw_row(const struct drawing *d, int32_t layer, int32_t row, double y)
{
    char kept[32], most[32], heads[40] = "";
    int32_t head = row * d->per_row, n_lane = d->m->n_head - head;
    int64_t n = 0;
    n_lane = n_lane < d->per_row ? n_lane : d->per_row;
    memset(d->row, 0, (size_t)d->n_column * sizeof(*d->row));
    for (int32_t h = head; h < head + n_lane; h++)
        n += count_lane(d, layer, h, d->row);
    if (n_lane > 1)
        snprintf(heads, sizeof(heads), "-%d", head + n_lane - 1);
    eval_text_printf(d->t, "<g id=\"l%dh%d%s\"><title>layer %d, KV head %d%s: %s of %s</title>",
                     layer, head, heads, layer, head, heads, figure_count((double)n, kept),
                     figure_count((double)d->m->n_token * n_lane, most));
    set_levels(d, n_lane);
    for (uint8_t level = 1; level <= N_LEVEL; level++)
        draw_level(d, y, level);
    eval_text_add(d->t, "</g>\n");
    return n;
}

static double layer_height(const struct drawing *d)
{
    return d->rows * d->row_height;
}

static double layer_top(const struct drawing *d, int32_t layer)
{
    return d->top + layer * (layer_height(d) + LAYER_GAP);
}

/* The names on the left and the shares on the right, where they are not too close. */
static void label_layer(const struct drawing *d, int32_t layer)
{
    char text[48];
    double top = layer_top(d, layer), middle = top + layer_height(d) / 2 + 4.5;
    double pitch = layer_height(d) + LAYER_GAP;
    int32_t every = 1 + (int32_t)(15.0 / pitch);
    if (layer % every != 0)
        return;
    bool rows = d->rows > 1 && d->row_height >= ROW_LABELLED;
    snprintf(text, sizeof(text), "layer %d", layer);
    svg_text(d->t, LEFT - (rows ? 26 : 10), middle, "name end", text);
    for (int32_t r = 0; rows && r < d->rows; r++) {
        snprintf(text, sizeof(text), "%d", r * d->per_row);
        svg_text(d->t, LEFT - 8, top + (r + 0.5) * d->row_height + 4.5, "end", text);
    }
    snprintf(text, sizeof(text), "%.1f %%",
             percent((double)d->n_of_layer[layer], (double)d->m->n_token * d->m->n_head));
    svg_text(d->t, RIGHT + 10, middle, "name", text);
}

static void draw_rows(const struct drawing *d)
{
    double thick = d->row_height >= ROW_GAPPED ? d->row_height - 1.0 : d->row_height;
    bool gaps = thick < d->row_height;
    for (int32_t l = 0; l < d->m->n_layer; l++)
        for (int32_t r = 0; r < (gaps ? d->rows : 1); r++)
            add_rectangle(d->t, "gone", LEFT, layer_top(d, l) + r * d->row_height, PLOT,
                          gaps ? thick : layer_height(d));
    eval_text_printf(d->t,
                     "<g class=\"rows\" stroke-width=\"%g\" transform=\"translate(%g 0) "
                     "scale(%.8g 1)\">\n",
                     thick, LEFT, d->scale);
    for (int32_t l = 0; l < d->m->n_layer; l++) {
        d->n_of_layer[l] = 0;
        for (int32_t r = 0; r < d->rows; r++)
            d->n_of_layer[l] += draw_row(d, l, r, layer_top(d, l) + r * d->row_height + thick / 2);
    }
    eval_text_add(d->t, "</g>\n");
}

/* Under the rows: how many of the lanes have an entry of a position. */
static void draw_profile(const struct drawing *d, double top)
{
    int64_t n_lane = (int64_t)d->m->n_layer * d->m->n_head;
    int32_t step = 1 + (int32_t)(1.5 / d->scale); /* a pixel and a half */
    double floor_y = top + PROFILE_HEIGHT;
    add_rectangle(d->t, "gone", LEFT, top, PLOT, PROFILE_HEIGHT);
    eval_text_printf(d->t, "<path class=\"profile\" d=\"M%.2f %.1f", LEFT, floor_y);
    for (int32_t i = 0; i < d->m->n_token; i += step) {
        int64_t n = 0;
        int32_t end = i + step < d->m->n_token ? i + step : d->m->n_token;
        for (int32_t p = i; p < end; p++)
            n += d->all[p];
        double share = (double)n / ((double)n_lane * (end - i));
        eval_text_printf(d->t, "V%.1fH%.1f", floor_y - share * PROFILE_HEIGHT,
                         LEFT + end * d->scale);
    }
    eval_text_printf(d->t, "V%.1fz\"/>\n", floor_y);
    svg_text(d->t, LEFT - 10, top + PROFILE_HEIGHT / 2 - 3, "name end", "share of");
    svg_text(d->t, LEFT - 10, top + PROFILE_HEIGHT / 2 + 13, "name end", "the lanes");
    svg_text(d->t, RIGHT + 10, top + 11, "", "100 %");
    svg_text(d->t, RIGHT + 10, floor_y, "", "0 %");
}

/* ---- the drawing ---- */

static void draw_all(struct drawing *d)
{
    double profile = d->bottom + 14.0;
    begin(d, profile + PROFILE_HEIGHT + 66.0);
    draw_key(d);
    draw_rows(d);
    draw_spans(d);
    if (d->rows > 1 && d->row_height >= ROW_LABELLED)
        svg_text(d->t, LEFT - 8, d->top - 8, "end", "KV head");
    svg_text(d->t, RIGHT + 10, d->top - 8, "", "kept");
    for (int32_t l = 0; l < d->m->n_layer; l++)
        label_layer(d, l);
    draw_profile(d, profile);
    draw_axis(d, profile + PROFILE_HEIGHT);
    eval_text_add(d->t, "</svg>\n");
}

/* Heads share rows where there are too many lanes for a page. */
static void lay_out(struct drawing *d)
{
    const struct map *m = d->m;
    int64_t most = ROWS_MAX / m->n_layer > 0 ? ROWS_MAX / m->n_layer : 1;
    d->per_row = (int32_t)((m->n_head + most - 1) / most);
    d->rows = (m->n_head + d->per_row - 1) / d->per_row;
    double height = (double)(int)(ROWS_HEIGHT / ((double)m->n_layer * d->rows));
    d->row_height = height < ROW_MIN ? ROW_MIN : height > ROW_MAX ? ROW_MAX : height;
    d->scale = PLOT / m->n_token;
    d->n_prompt = m->n_prompt < m->n_token ? m->n_prompt : m->n_token;
    find_always(d);
    d->top = (d->first + d->window > 0 ? ALWAYS_Y : PROMPT_Y) + ROWS_BELOW;
    d->bottom = layer_top(d, m->n_layer) - LAYER_GAP;
}

static void close_drawing(struct drawing *d)
{
    free(d->all);
    free(d->level);
    free(d->row);
    free(d->positions);
    free(d->n_of_layer);
}

static pith_status no_memory(const struct map *m, pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "map: no memory for %d tokens", m->n_token);
}

static pith_status open_drawing(struct drawing *d, pith_error *err)
{
    const struct map *m = d->m;
    size_t n = (size_t)(m->n_token > 0 ? m->n_token : 1);
    if (m->n_layer < 1 || m->n_head < 1 || m->n_token < 1)
        return eval_fail(err, PITH_INVALID, "map: %d layers, %d heads, %d tokens: nothing to draw",
                         m->n_layer, m->n_head, m->n_token);
    d->n_of_layer = calloc((size_t)m->n_layer, sizeof(*d->n_of_layer));
    d->positions = calloc(n, sizeof(*d->positions));
    d->row = calloc(n, sizeof(*d->row));
    d->level = calloc(n, sizeof(*d->level));
    d->all = calloc(n, sizeof(*d->all));
    if (d->n_of_layer == NULL || d->positions == NULL || d->row == NULL || d->level == NULL ||
        d->all == NULL) {
        close_drawing(d);
        return no_memory(m, err);
    }
    lay_out(d);
    survey(d);
    return PITH_OK;
}

pith_status map_draw(const struct map *m, struct eval_text *svg, pith_error *err)
{
    struct drawing d = {.m = m, .t = svg};
    size_t start = svg->len;
    pith_status status = open_drawing(&d, err);
    if (status != PITH_OK)
        return status;
    d.bin = 1 + (m->n_token - 1) / COLUMNS_MAX;
    for (;; d.bin += d.bin / 2 + 1) {
        d.n_column = (m->n_token + d.bin - 1) / d.bin;
        draw_all(&d);
        if (svg->failed || svg->len - start <= MAP_BYTES_MAX || d.n_column <= COLUMNS_MIN)
            break;
        svg->len = start;
    }
    close_drawing(&d);
    return svg->failed ? no_memory(m, err) : PITH_OK;
}

/* ---- the page ---- */

/* The positions of a lane as "0-3,254-289". */
static void add_ranges(struct drawing *d, int32_t layer, int32_t head)
{
    memset(d->row, 0, (size_t)d->m->n_token * sizeof(*d->row));
    count_lane(d, layer, head, d->row);
    for (int32_t i = 0, j; i < d->m->n_token; i = j + 1) {
        for (j = i; j < d->m->n_token && d->row[j] > 0; j++)
            continue;
        if (j > i)
            eval_text_printf(d->t, d->t->len > 0 ? ",%d-%d" : "%d-%d", i, j - 1);
    }
}

static json_t *lanes_json(struct drawing *d)
{
    json_t *lanes = json_array();
    struct eval_text ranges = {0};
    d->t = &ranges;
    for (int32_t l = 0; l < d->m->n_layer; l++)
        for (int32_t h = 0; h < d->m->n_head; h++) {
            eval_text_clear(&ranges);
            add_ranges(d, l, h);
            json_array_append_new(lanes, json_string(ranges.data != NULL ? ranges.data : ""));
        }
    if (ranges.failed)
        json_array_clear(lanes);
    eval_text_free(&ranges);
    return lanes;
}

pith_status map_page(const struct map *m, struct eval_text *html, pith_error *err)
{
    char rules[256], numbers[320];
    struct drawing d = {.m = m};
    pith_status status = open_drawing(&d, err);
    if (status != PITH_OK)
        return status;
    describe_rules(m, rules, sizeof(rules));
    describe_numbers(&d, numbers, sizeof(numbers));
    json_t *lanes = lanes_json(&d);
    bool ok = json_array_size(lanes) == (size_t)m->n_layer * (size_t)m->n_head;
    json_t *data = json_pack("{s:s, s:o, s:o, s:[s,s], s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:o}",
                             "type", "map", "model", sheet_text(m->model), "keep",
                             sheet_text(m->keep != NULL ? m->keep : "none"), "lines", rules,
                             numbers, "n_layer", m->n_layer, "n_head", m->n_head, "n_token",
                             m->n_token, "n_prompt", d.n_prompt, "first", d.first, "first_name",
                             d.first_name, "window", d.window, "lanes", lanes);
    close_drawing(&d);
    if (ok)
        return sheet_write(data, html, err);
    json_decref(data);
    return no_memory(m, err);
}
