/*
 * line.h - one line from the user at a time: with editing and history on a terminal, plainly from
 * a pipe.
 */
#ifndef CLI_LINE_H
#define CLI_LINE_H

#include <stdbool.h>
#include <stddef.h>

struct line_reader;

/* history_path: read now, appended to with every line; NULL: history of this run only. */
struct line_reader *line_open(const char *prompt, const char *history_path);
void line_close(struct line_reader *reader);

enum line_result {
    LINE_TEXT,
    LINE_CANCELLED, /* Ctrl-C while editing */
    LINE_END,       /* end of input, Ctrl-D */
};

/* *text [*len], without the newline (LF or CR LF) and terminated, belongs to the reader until the
   next call. */
enum line_result line_read(struct line_reader *reader, const char **text, size_t *len);

/* True where a person sits at the other end. */
bool line_is_interactive(const struct line_reader *reader);

#endif
