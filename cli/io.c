/*
 * io.c - failures, output, input and signals of the command. It knows no model.
 *
 * Invariant: a verb's standard output has arrived when its exit status is 0.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "io.h"

#include <errno.h>
#include <langinfo.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "eval.h"
#include "ranks.h"

#define FIRST_READ 65536

static const char *verb_name; /* of the running command */
static int output_errno;      /* why standard output failed; 0: it did not */
static volatile sig_atomic_t interrupted;

/* ---- failures ---- */

void cli_set_verb(const char *verb)
{
    verb_name = verb;
}

static void say(const char *fmt, va_list args)
{
    fflush(stdout);
    cli_progress_hide();
    fprintf(stderr, "pith%s%s: ", verb_name != NULL ? " " : "", verb_name != NULL ? verb_name : "");
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
}

/* The system frees the command's memory and files: nothing runs at exit. */
void cli_exit(int status)
{
    fflush(NULL);
    ranks_abandon();
    _exit(status);
}

void cli_fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(fmt, args);
    va_end(args);
    cli_exit(EXIT_FAILURE);
}

void cli_fail_usage(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(fmt, args);
    va_end(args);
    cli_exit(EXIT_USAGE);
}

void cli_check(pith_status status, const pith_error *err)
{
    if (status == PITH_CANCELLED && cli_interrupted()) {
        cli_progress_hide();
        cli_exit(EXIT_INTERRUPTED);
    }
    if (status != PITH_OK)
        cli_fail("%s", err->message);
}

void cli_note(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(fmt, args);
    va_end(args);
}

void *cli_alloc(size_t n, size_t size)
{
    void *block = calloc(n > 0 ? n : 1, size > 0 ? size : 1);
    if (block == NULL)
        cli_fail("no memory for %zu times %zu bytes", n, size);
    return block;
}

/* ---- standard output ---- */

bool cli_write(const char *text, size_t len)
{
    if (output_errno != 0)
        return false;
    errno = 0;
    if (fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0)
        return true;
    output_errno = errno != 0 ? errno : EIO;
    return false;
}

void cli_finish_output(void)
{
    errno = 0;
    if (output_errno == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        output_errno = errno != 0 ? errno : EIO;
    if (output_errno == EPIPE)
        cli_exit(EXIT_FAILURE);
    if (output_errno != 0)
        cli_fail("standard output: %s", strerror(output_errno));
}

bool cli_is_terminal(int fd)
{
    return isatty(fd) == 1;
}

int cli_columns(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 80;
}

bool cli_is_utf8(void)
{
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

/* ---- texts ---- */

struct cli_text cli_read_file(const char *path)
{
    struct cli_text text = {0};
    bool standard = strcmp(path, "-") == 0;
    if (standard && ranks_several())
        cli_fail_usage("standard input: only rank 0 has one; write the text to a file");
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (file == NULL)
        cli_fail("cannot open \"%s\": %s", path, strerror(errno));
    size_t cap = FIRST_READ;
    text.data = cli_alloc(cap + 1, 1);
    for (;;) {
        text.len += fread(text.data + text.len, 1, cap - text.len, file);
        if (text.len < cap)
            break;
        char *grown = realloc(text.data, 2 * cap + 1);
        if (grown == NULL)
            cli_fail("no memory for the %zu bytes and more of \"%s\"", cap, path);
        text.data = grown;
        cap *= 2;
    }
    if (ferror(file))
        cli_fail("cannot read \"%s\": %s", path, strerror(errno));
    if (!standard)
        fclose(file);
    text.len = eval_drop_mark(text.data, text.len);
    text.data[text.len] = '\0';
    return text;
}

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef";
    const char *at = c != '\0' ? strchr(digits, c | 0x20) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

struct cli_text cli_unescape(const char *text, size_t len)
{
    static const char from[] = "nrt\"'\\", to[] = "\n\r\t\"'\\";
    struct cli_text out = {.data = cli_alloc(len + 1, 1)};
    for (size_t i = 0; i < len; i++) {
        const char *at = text[i] == '\\' && i + 1 < len ? strchr(from, text[i + 1]) : NULL;
        if (at != NULL && *at != '\0') {
            out.data[out.len++] = to[at - from];
            i++;
        } else if (text[i] == '\\' && i + 3 < len && text[i + 1] == 'x' &&
                   hex_digit(text[i + 2]) >= 0 && hex_digit(text[i + 3]) >= 0) {
            out.data[out.len++] = (char)(16 * hex_digit(text[i + 2]) + hex_digit(text[i + 3]));
            i += 3;
        } else {
            out.data[out.len++] = text[i];
        }
    }
    return out;
}

void cli_chomp(struct cli_text *text)
{
    if (text->len > 0 && text->data[text->len - 1] == '\n')
        text->data[--text->len] = '\0';
}

const char *cli_bytes(int64_t bytes, char *buf)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int unit = 0;
    while (v >= 1024.0 && unit < 4) {
        v /= 1024.0;
        unit++;
    }
    if (unit == 0)
        snprintf(buf, 32, "%lld bytes", (long long)bytes);
    else
        snprintf(buf, 32, "%.*f %s", v < 10.0 ? 2 : 1, v, units[unit]);
    return buf;
}

/* ---- JSON ---- */

json_t *cli_json_text(const char *text, size_t len)
{
    size_t cap = 3 * (len + 8);
    char *whole = cli_alloc(cap, 1);
    pith_utf8_stream stream = {0};
    size_t n = pith_utf8_push(&stream, text, len, whole, cap);
    n += pith_utf8_push(&stream, NULL, 0, whole + n, cap - n);
    json_t *value = json_stringn(whole, n);
    free(whole);
    return value;
}

void cli_json_print(json_t *value, size_t flags)
{
    if (value == NULL)
        cli_fail("no memory for the JSON output");
    errno = 0;
    if (json_dumpf(value, stdout, flags) != 0 && output_errno == 0)
        output_errno = errno != 0 ? errno : EIO;
    json_decref(value);
    cli_write("\n", 1);
}

/* ---- Ctrl-C ---- */

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (interrupted)
        _exit(EXIT_INTERRUPTED);
    interrupted = 1;
}

void cli_interrupt_catch(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool cli_interrupted(void)
{
    return interrupted != 0;
}
void cli_interrupt_clear(void)
{
    interrupted = 0;
}
