/*
 * progress.c - the bar. It draws one line from two sources: an operation that knows its fraction,
 * and an engine that reads tokens, within an operation or alone.
 *
 * Invariant: nothing is drawn for an operation that ends within START_S. Long texts are the
 * exception, whose first tokens can take longer than a user waits without a word.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "io.h"
#include "session.h"

#define START_S 0.25
#define EVERY_S 0.1
#define LONG_TEXT 1024 /* tokens */
#define SHORT_TEXT 64  /* of which nothing is said, but within an operation */
#define BAR_LEN 20
#define RECENT_S 2.0 /* the speed that predicts the time left is of at least this long */

/* The text that an engine reads. */
struct reading {
    bool on; /* an evaluation is under way */
    int64_t n_read;
    int64_t n_token;
    double start_s;
    struct {
        double at;
        int64_t n_read;
    } mark[2]; /* the older is RECENT_S old or older */
};

static const struct cli_progress *task; /* told of last; NULL: there is none */
static double task_fraction;
static struct reading reading;
static bool forced;
static double drawn_s; /* when the line was drawn last */
static int width;      /* characters on it */

bool cli_progress_wanted(void)
{
    return cli_is_terminal(STDERR_FILENO);
}

/* ---- the line ---- */

static int columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20)
        return size.ws_col;
    return 120;
}

/* 6498 as "6,498" into buf [32]; returns buf. */
static const char *count(int64_t n, char *buf)
{
    char digits[32];
    int len = snprintf(digits, sizeof(digits), "%lld", (long long)n), at = 0;
    for (int i = 0; i < len; i++) {
        buf[at++] = digits[i];
        if ((len - i - 1) % 3 == 0 && i + 1 < len)
            buf[at++] = ',';
    }
    buf[at] = '\0';
    return buf;
}

struct line {
    char text[320];
    size_t len;
};

static void add(struct line *line, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct line *line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line->text + line->len, sizeof(line->text) - line->len, fmt, args);
    va_end(args);
    line->len += n > 0 ? (size_t)n : 0;
    if (line->len >= sizeof(line->text))
        line->len = sizeof(line->text) - 1;
}

static void add_bar(struct line *line, double fraction)
{
    add(line, "[");
    for (int i = 0; i < BAR_LEN; i++)
        add(line, "%c", (i + 1) <= fraction * BAR_LEN + 1e-9 ? '#' : '.');
    add(line, "] %3.0f %%  ", 100.0 * fraction);
}

static void add_left(struct line *line, double seconds)
{
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        add(line, ", %ld h %02ld min left", s / 3600, s / 60 % 60);
    else if (s >= 60)
        add(line, ", %ld min %02ld s left", s / 60, s % 60);
    else
        add(line, ", %ld s left", s);
}

static void add_reading(struct line *line, double now)
{
    char read[32], all[32];
    double seconds = now - reading.start_s;
    add(line, "%s of %s tokens", count(reading.n_read, read), count(reading.n_token, all));
    if (seconds > 0.0 && reading.n_read > 0)
        add(line, ", %.0f tokens/s", (double)reading.n_read / seconds);
}

/* Later tokens see more and take longer: the last ones say best what is to come. */
static void add_reading_left(struct line *line, double now)
{
    double seconds = now - reading.mark[0].at;
    int64_t n = reading.n_read - reading.mark[0].n_read;
    if (seconds > 0.0 && n > 0)
        add_left(line, (double)(reading.n_token - reading.n_read) * seconds / (double)n);
}

static void add_task(struct line *line, double now)
{
    double seconds = now - task->start_s, gained = task_fraction - task->first;
    char done[32], all[32], rate[32];
    add_bar(line, task_fraction);
    add(line, "%s", task->what);
    if (task->bytes > 0) {
        double moved = (double)task->bytes * gained;
        add(line, ": %s of %s", cli_bytes((int64_t)((double)task->bytes * task_fraction), done),
            cli_bytes(task->bytes, all));
        if (seconds > 0.0 && moved > 0.0)
            add(line, ", %s/s", cli_bytes((int64_t)(moved / seconds), rate));
    }
    if (reading.on) {
        add(line, ": ");
        add_reading(line, now);
    }
    if (gained > 0.0)
        add_left(line, seconds * (1.0 - task_fraction) / gained);
}

static void draw(double now)
{
    struct line line = {.len = 0};
    int most = columns() - 1;
    if (task != NULL) {
        add_task(&line, now);
    } else {
        add_bar(&line, (double)reading.n_read / (double)reading.n_token);
        add(&line, "reading ");
        add_reading(&line, now);
        add_reading_left(&line, now);
    }
    int len = (int)line.len < most ? (int)line.len : most;
    fprintf(stderr, "\r%.*s%*s", len, line.text, width > len ? width - len : 0, "");
    fflush(stderr);
    width = len;
    drawn_s = now;
}

void cli_progress_hide(void)
{
    if (width > 0)
        fprintf(stderr, "\r%*s\r", width, "");
    width = 0;
}

/* ---- operations ---- */

bool cli_progress_step(void *user, double fraction)
{
    struct cli_progress *p = user;
    double now = clock_s();
    bool begins = p->start_s == 0.0;
    if (begins) {
        p->start_s = now;
        p->first = fraction;
    }
    task = p;
    task_fraction = fraction < 0.0 ? 0.0 : fraction > 1.0 ? 1.0 : fraction;
    /* Where the user asked for a bar without a terminal each call is told. */
    bool due = now - p->start_s >= START_S && now - drawn_s >= EVERY_S;
    if (p->on && (due || !cli_progress_wanted()))
        draw(now);
    return !cli_interrupted();
}

void cli_progress_end(struct cli_progress *progress)
{
    if (task == progress)
        task = NULL;
    cli_progress_hide();
}

/* ---- tokens ---- */

void cli_progress_force_reading(void)
{
    forced = true;
}

static void note_speed(double now)
{
    if (now - reading.mark[1].at < RECENT_S)
        return;
    reading.mark[0] = reading.mark[1];
    reading.mark[1].at = now;
    reading.mark[1].n_read = reading.n_read;
}

bool cli_progress_read(void *user, int64_t n_read, int64_t n_token)
{
    bool on = task != NULL ? task->on : forced || cli_progress_wanted();
    double now = clock_s();
    (void)user;
    if (!reading.on || n_read < reading.n_read || n_token != reading.n_token) {
        reading = (struct reading){.on = true, .start_s = now, .n_token = n_token};
        reading.mark[0].at = reading.mark[1].at = now;
    }
    reading.n_read = n_read;
    note_speed(now);
    if (n_read == n_token) {
        reading.on = false;
        if (task == NULL)
            cli_progress_hide();
        return !cli_interrupted();
    }
    bool long_text = n_token >= LONG_TEXT || forced;
    if (on && (task != NULL || n_token > SHORT_TEXT) &&
        (long_text || now - reading.start_s >= START_S) && now - drawn_s >= EVERY_S)
        draw(now);
    return !cli_interrupted();
}
