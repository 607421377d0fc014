/*
 * report_svg.c - strokes of the charts. It knows nothing of results: values and texts in, SVG out.
 *
 * The page is written as XML that is also HTML, so every element is closed and every text escaped
 * here, in one place. Widths of texts are estimated, since no font is at hand. 7.6 pixels per
 * character of bold 12-pixel sans serif is above the mean of the usual ones.
 */
#include "report_svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHAR_WIDTH 7.6
#define LABEL_HEIGHT 13.0
#define MARK_RADIUS 4.5
#define SHADES 10           /* classes h0 (nothing right) .. h10 (all right) */
#define SPAN_MIN 1e-30      /* of a scale's ends: what is less lies outside of the plot */
#define TICK_WIDTH_MIN 46.0 /* pixels between labels of the x axis */

/* ---- text ---- */

static void escape_byte(struct eval_text *t, const char *at)
{
    unsigned char c = (unsigned char)*at;
    if (c == '&')
        eval_text_add(t, "&amp;");
    else if (c == '<')
        eval_text_add(t, "&lt;");
    else if (c == '>')
        eval_text_add(t, "&gt;");
    else if (c == '"')
        eval_text_add(t, "&quot;");
    else if (c == '\'')
        eval_text_add(t, "&#39;");
    else if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f)
        eval_text_add(t, "\xef\xbf\xbd");
    else
        eval_text_add_n(t, at, 1);
}

/* U+FFFE and U+FFFF are UTF-8 but no XML characters. */
static bool is_noncharacter(const char *at)
{
    return memcmp(at, "\xef\xbf", 2) == 0 &&
           ((unsigned char)at[2] == 0xbe || (unsigned char)at[2] == 0xbf);
}

static bool starts_character(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

int32_t html_length(const char *s)
{
    int32_t n = 0;
    for (; *s != '\0'; s++)
        n += starts_character(*s);
    return n;
}

/* s is UTF-8. */
static void escape_utf8(struct eval_text *t, const char *s, int32_t n)
{
    int32_t left = html_length(s) > n ? n - 1 : n;
    for (; *s != '\0'; s++) {
        if (starts_character(*s) && left-- == 0)
            break;
        if (*s == '\xef' && s[1] != '\0' && is_noncharacter(s)) {
            eval_text_add(t, "\xef\xbf\xbd");
            s += 2;
        } else {
            escape_byte(t, s);
        }
    }
    if (*s != '\0')
        eval_text_add(t, "\xe2\x80\xa6");
}

void html_escape_short(struct eval_text *t, const char *s, int32_t n)
{
    char *text = eval_utf8(s != NULL ? s : SVG_DASH);
    if (text != NULL)
        escape_utf8(t, text, n);
    else
        t->failed = true;
    free(text);
}

void html_escape(struct eval_text *t, const char *s)
{
    html_escape_short(t, s, INT32_MAX);
}

/* ---- figures ---- */

static const char *dash(char *buf)
{
    strcpy(buf, SVG_DASH);
    return buf;
}

const char *figure_bytes(double bytes, char *buf)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    if (!isfinite(bytes))
        return dash(buf);
    for (; unit < 4 && fabs(bytes) >= 1024.0; unit++)
        bytes /= 1024.0;
    bool whole = bytes == floor(bytes) || unit == 0 || bytes >= 100.0;
    snprintf(buf, 32, "%.*f %s", whole ? 0 : 1, bytes, names[unit]);
    return buf;
}

const char *figure_count(double n, char *buf)
{
    char digits[32];
    if (!isfinite(n) || fabs(n) >= 1e15)
        return dash(buf);
    int len = snprintf(digits, sizeof(digits), "%.0f", n), out = 0;
    for (int i = 0; i < len; i++) {
        buf[out++] = digits[i];
        if (digits[i] != '-' && i + 1 < len && (len - 1 - i) % 3 == 0)
            buf[out++] = ',';
    }
    buf[out] = '\0';
    return buf;
}

const char *figure_plain(double x, char *buf)
{
    if (!isfinite(x))
        return dash(buf);
    if (fabs(x) >= 1000.0)
        return figure_count(x, buf);
    snprintf(buf, 32, "%.*f", fabs(x) >= 100.0 ? 0 : fabs(x) >= 10.0 ? 1 : 3, x);
    return buf;
}

/* ---- axes ---- */

/* The least of 1, 2, 5 times a power of ten that is at least x. */
static double round_step(double x)
{
    double power = pow(10.0, floor(log10(x)));
    double mantissa = x / power;
    return (mantissa <= 1.0 ? 1.0 : mantissa <= 2.0 ? 2.0 : mantissa <= 5.0 ? 5.0 : 10.0) * power;
}

struct svg_scale svg_scale_linear(double low, double high, double begin, double end)
{
    struct svg_scale s = {.begin = begin, .end = end};
    double least = fabs(high) > 0 ? 1e-6 * fabs(high) : 1e-6;
    double step = round_step(fmax(high - low, least) / 5.0);
    s.low = floor(low / step + 1e-9) * step;
    s.high = ceil(high / step - 1e-9) * step;
    if (s.high <= s.low)
        s.high = s.low + step;
    for (int32_t i = 0; s.n_tick < SVG_TICKS_MAX; i++) {
        double value = s.low + i * step;
        if (value > s.high + step / 2)
            break;
        s.tick[s.n_tick++] = value;
    }
    return s;
}

/* Powers of ten times 1, 2 and 5. */
static void add_decimal_ticks(struct svg_scale *s)
{
    static const double mantissas[] = {1.0, 2.0, 5.0};
    for (double power = pow(10.0, floor(log10(s->low))); power <= s->high; power *= 10.0)
        for (int i = 0; i < 3 && s->n_tick < SVG_TICKS_MAX; i++) {
            double value = mantissas[i] * power;
            if (value >= s->low && value <= s->high)
                s->tick[s->n_tick++] = value;
        }
}

static void add_binary_ticks(struct svg_scale *s)
{
    double value = exp2(ceil(log2(s->low)));
    for (; value <= s->high && s->n_tick < SVG_TICKS_MAX; value *= 2.0)
        s->tick[s->n_tick++] = value;
}

static void add_linear_ticks(struct svg_scale *s, bool bytes)
{
    double unit = bytes ? pow(1024.0, floor(log2(s->high) / 10.0)) : 1.0;
    struct svg_scale linear = svg_scale_linear(s->low / unit, s->high / unit, 0.0, 1.0);
    s->n_tick = 0;
    for (int32_t i = 0; i < linear.n_tick; i++) {
        double value = linear.tick[i] * unit;
        if (value >= s->low && value <= s->high)
            s->tick[s->n_tick++] = value;
    }
}

struct svg_scale svg_scale_positive(double low, double high, double begin, double end, bool bytes)
{
    struct svg_scale s = {.begin = begin, .end = end, .logarithmic = high > 4.0 * low};
    low = fmax(low, SPAN_MIN * high);
    if (s.logarithmic) {
        double margin = pow(high / low, 0.08);
        s.low = low / margin;
        s.high = high * margin;
    } else {
        double margin = high > low ? 0.12 * (high - low) : 0.3 * high;
        s.low = fmax(low - margin, 0.5 * low);
        s.high = high + margin;
    }
    if (s.logarithmic && bytes)
        add_binary_ticks(&s);
    else if (s.logarithmic)
        add_decimal_ticks(&s);
    if (s.n_tick < 2)
        add_linear_ticks(&s, bytes);
    return s;
}

double svg_at(const struct svg_scale *s, double value)
{
    double part = s->logarithmic ? log(value / s->low) / log(s->high / s->low)
                                 : (value - s->low) / (s->high - s->low);
    return s->begin + part * (s->end - s->begin);
}

void svg_axis_x(struct eval_text *t, const struct svg_scale *x, const struct svg_scale *y,
                svg_figure_fn *figure, const char *name)
{
    char buf[32];
    double last = -1e9;
    for (int32_t i = 0; i < x->n_tick; i++) {
        double at = svg_at(x, x->tick[i]);
        eval_text_printf(t, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", at, y->begin, y->end);
        if (at - last < TICK_WIDTH_MIN)
            continue;
        svg_text(t, at, y->begin + 17, "tick mid", figure(x->tick[i], buf));
        last = at;
    }
    eval_text_printf(t, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>", x->begin, y->begin, x->end);
    svg_text(t, (x->begin + x->end) / 2, y->begin + 36, "name mid", name);
}

void svg_axis_y(struct eval_text *t, const struct svg_scale *x, const struct svg_scale *y,
                svg_figure_fn *figure, const char *name)
{
    char buf[32];
    for (int32_t i = 0; i < y->n_tick; i++) {
        double at = svg_at(y, y->tick[i]);
        eval_text_printf(t, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", x->begin, at, x->end);
        svg_text(t, x->begin - 7, at + 4, "tick end", figure(y->tick[i], buf));
    }
    eval_text_printf(t, "<g transform=\"translate(13 %.1f) rotate(-90)\">",
                     (y->begin + y->end) / 2);
    svg_text(t, 0, 0, "name mid", name);
    eval_text_add(t, "</g>");
}

/* ---- marks ---- */

void svg_begin(struct eval_text *t, double width, double height, const char *class_name,
               const char *label)
{
    eval_text_printf(t,
                     "<svg class=\"%s\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
                     "height=\"%.0f\" role=\"img\" aria-label=\"",
                     class_name, width, height, width, height);
    html_escape(t, label);
    eval_text_add(t, "\">");
}

void svg_end(struct eval_text *t)
{
    eval_text_add(t, "</svg>\n");
}

void svg_text(struct eval_text *t, double x, double y, const char *class_name, const char *text)
{
    eval_text_printf(t, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class_name);
    html_escape(t, text);
    eval_text_add(t, "</text>");
}

/* Outlines around (0, 0) with about the area of a circle of radius 4.5. */
static const char *const marker_paths[SVG_N_MARKER] = {
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",                /* circle */
    "M-4 -4h8v8h-8z",                                               /* square */
    "M0 -5.4L5 3.6H-5z",                                            /* triangle */
    "M0 -5.6L5.6 0L0 5.6L-5.6 0z",                                  /* diamond */
    "M0 5.4L5 -3.6H-5z",                                            /* triangle, down */
    "M-1.7 -5.2h3.4v3.5h3.5v3.4h-3.5v3.5h-3.4v-3.5h-3.5v-3.4h3.5z", /* plus */
    "M0 -6L1.8 -1.9L5.7 -1.9L2.6 1L3.7 5L0 2.8L-3.7 5L-2.6 1L-5.7 -1.9L-1.8 -1.9z", /* star */
};

const char *svg_colour(int32_t slot, char *buf)
{
    if (slot < 0)
        strcpy(buf, "cf");
    else
        snprintf(buf, 8, "c%d", slot % SVG_N_COLOUR);
    return buf;
}

void svg_marker(struct eval_text *t, int32_t slot, double x, double y)
{
    char colour[8];
    eval_text_printf(t, "<path class=\"mark %s\" transform=\"translate(%.1f %.1f)\" d=\"%s\"/>",
                     svg_colour(slot, colour), x, y,
                     marker_paths[slot < 0 ? 0 : slot % SVG_N_MARKER]);
}

void svg_score_cell(struct eval_text *t, double x, double y, double width, double height,
                    double score)
{
    char figure[32] = SVG_DASH;
    int shade = isnan(score) ? -1 : (int)lround(fmin(fmax(score, 0.0), 1.0) * SHADES);
    if (shade >= 0) {
        eval_text_printf(t, "<rect class=\"h%d\"", shade);
        snprintf(figure, sizeof(figure), "%.2f", score);
    } else {
        eval_text_add(t, "<rect class=\"none\"");
    }
    eval_text_printf(t, " x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>", x + 1, y + 1,
                     width - 2, height - 2);
    /* Both ends of the scale are dark, its middle is light. */
    svg_text(t, x + width / 2, y + height / 2 + 4,
             shade < 0                  ? "grid-figure mid"
             : shade <= 2 || shade >= 8 ? "grid-figure on-dark mid"
                                        : "grid-figure on-light mid",
             figure);
}

/* ---- labels ---- */

static void add_box(struct svg_boxes *b, double x0, double y0, double x1, double y1)
{
    if (b->n == SVG_LABELS_MAX)
        return;
    b->box[b->n].x0 = x0;
    b->box[b->n].y0 = y0;
    b->box[b->n].x1 = x1;
    b->box[b->n].y1 = y1;
    b->n++;
}

static bool is_free(const struct svg_boxes *b, double x0, double y0, double x1, double y1)
{
    if (x0 < b->left || x1 > b->right || y0 < b->top || y1 > b->bottom)
        return false;
    for (int32_t i = 0; i < b->n; i++)
        if (x0 < b->box[i].x1 && x1 > b->box[i].x0 && y0 < b->box[i].y1 && y1 > b->box[i].y0)
            return false;
    return b->n < SVG_LABELS_MAX;
}

void svg_boxes_mark(struct svg_boxes *b, double x, double y, double radius)
{
    add_box(b, x - radius, y - radius, x + radius, y + radius);
}

void svg_boxes_label(struct svg_boxes *b, struct eval_text *t, double x, double y,
                     const char *class_name, const char *text)
{
    double width = CHAR_WIDTH * html_length(text), gap = MARK_RADIUS + 2;
    const struct {
        double x, y;
    } places[] = {
        {x + gap, y - LABEL_HEIGHT / 2},         /* right */
        {x - width / 2, y - gap - LABEL_HEIGHT}, /* above */
        {x - width / 2, y + gap},                /* below */
        {x - gap - width, y - LABEL_HEIGHT / 2}, /* left */
        {x + gap, y - gap - LABEL_HEIGHT},       /* right, higher */
        {x + gap, y + gap},                      /* right, lower */
    };
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        double x0 = places[i].x, y0 = places[i].y;
        if (!is_free(b, x0, y0, x0 + width, y0 + LABEL_HEIGHT))
            continue;
        add_box(b, x0, y0, x0 + width, y0 + LABEL_HEIGHT);
        svg_text(t, x0, y0 + LABEL_HEIGHT - 3, class_name, text);
        return;
    }
}
