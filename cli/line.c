/*
 * line.c - lines through libedit, or through getline where standard input is no terminal.
 *
 * While a line is edited the terminal sends Ctrl-C as a character, not as a signal. So it can give
 * the line up without touching the program's own handling of the signal.
 */
#define _GNU_SOURCE /* getline, and libedit's header wants it for its own types */

#include "line.h"

#include <histedit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io.h"

#define HISTORY_LEN 1000

struct line_reader {
    const char *prompt;       /* borrowed */
    const char *history_path; /* borrowed; NULL: none */
    EditLine *edit;           /* NULL: not interactive */
    History *history;
    bool cancelled;
    char *plain; /* getline's buffer */
    size_t plain_cap;
    char *text; /* the last line, terminated */
};

static char *give_prompt(EditLine *edit)
{
    struct line_reader *reader;
    el_get(edit, EL_CLIENTDATA, &reader);
    return (char *)reader->prompt;
}

/* Ctrl-C gives the line up. */
static unsigned char cancel_line(EditLine *edit, int key)
{
    struct line_reader *reader;
    (void)key;
    el_get(edit, EL_CLIENTDATA, &reader);
    reader->cancelled = true;
    return CC_EOF;
}

static void start_editing(struct line_reader *r)
{
    HistEvent event;
    r->edit = el_init("pith", stdin, stdout, stderr);
    if (r->edit == NULL)
        return;
    el_set(r->edit, EL_CLIENTDATA, r);
    el_set(r->edit, EL_PROMPT, give_prompt);
    el_set(r->edit, EL_EDITOR, "emacs");
    el_set(r->edit, EL_SETTY, "-d", "-isig", NULL);
    /* el_set would copy both texts, and never free the copies. */
    el_wset(r->edit, EL_ADDFN, L"pith-cancel", L"give the line up", cancel_line);
    el_set(r->edit, EL_BIND, "^C", "pith-cancel", NULL);
    el_set(r->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    r->history = history_init();
    if (r->history == NULL)
        return;
    history(r->history, &event, H_SETSIZE, HISTORY_LEN);
    history(r->history, &event, H_SETUNIQUE, 1);
    el_set(r->edit, EL_HIST, history, r->history);
    if (r->history_path != NULL)
        history(r->history, &event, H_LOAD, r->history_path);
}

struct line_reader *line_open(const char *prompt, const char *history_path)
{
    struct line_reader *r = cli_alloc(1, sizeof(*r));
    r->prompt = prompt;
    r->history_path = history_path;
    if (cli_is_terminal(STDIN_FILENO) && cli_is_terminal(STDOUT_FILENO))
        start_editing(r);
    return r;
}

void line_close(struct line_reader *r)
{
    if (r == NULL)
        return;
    if (r->history != NULL)
        history_end(r->history);
    if (r->edit != NULL)
        el_end(r->edit);
    free(r->plain);
    free(r->text);
    free(r);
}

bool line_is_interactive(const struct line_reader *r)
{
    return r->edit != NULL;
}

static void remember(struct line_reader *r, const char *line)
{
    HistEvent event;
    if (r->history == NULL || line[0] == '\n')
        return;
    history(r->history, &event, H_ENTER, line);
    if (r->history_path != NULL)
        history(r->history, &event, H_SAVE, r->history_path);
}

enum line_result line_read(struct line_reader *r, const char **text, size_t *len)
{
    const char *line;
    size_t n;
    if (r->edit != NULL) {
        int count = 0;
        r->cancelled = false;
        line = el_gets(r->edit, &count);
        if (r->cancelled) {
            el_set(r->edit, EL_UNBUFFERED, 0);
            el_reset(r->edit);
            fputs("^C\n", stdout);
            return LINE_CANCELLED;
        }
        if (line == NULL || count <= 0) {
            fputc('\n', stdout);
            return LINE_END;
        }
        n = strlen(line);
        remember(r, line);
    } else {
        ssize_t count = getline(&r->plain, &r->plain_cap, stdin);
        if (count < 0)
            return LINE_END;
        line = r->plain;
        n = (size_t)count;
    }
    if (n > 0 && line[n - 1] == '\n')
        n -= n > 1 && line[n - 2] == '\r' ? 2 : 1;
    free(r->text);
    r->text = cli_alloc(n + 1, 1);
    memcpy(r->text, line, n);
    *text = r->text;
    *len = n;
    return LINE_TEXT;
}
