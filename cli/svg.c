/* svg.c - texts of drawings: whatever names hold, the result is well-formed XML. */
#include "svg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static int32_t count_characters(const char *s)
{
    int32_t n = 0;
    for (; *s != '\0'; s++)
        n += starts_character(*s);
    return n;
}

/* s is UTF-8. */
static void escape_utf8(struct eval_text *t, const char *s, int32_t n)
{
    int32_t left = count_characters(s) > n ? n - 1 : n;
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

void svg_escape_short(struct eval_text *t, const char *s, int32_t n)
{
    char *text = eval_utf8(s);
    if (text != NULL)
        escape_utf8(t, text, n);
    else
        t->failed = true;
    free(text);
}

void svg_escape(struct eval_text *t, const char *s)
{
    svg_escape_short(t, s, INT32_MAX);
}

void svg_text(struct eval_text *t, double x, double y, const char *class_name, const char *text)
{
    eval_text_printf(t, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class_name);
    svg_escape(t, text);
    eval_text_add(t, "</text>\n");
}

const char *figure_count(double n, char *buf)
{
    char digits[32];
    int len = snprintf(digits, sizeof(digits), "%.0f", n), out = 0;
    for (int i = 0; i < len; i++) {
        buf[out++] = digits[i];
        if (digits[i] != '-' && i + 1 < len && (len - 1 - i) % 3 == 0)
            buf[out++] = ',';
    }
    buf[out] = '\0';
    return buf;
}
