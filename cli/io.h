/*
 * io.h - how a command speaks: failures, standard output that must arrive, texts from files,
 * numbers for people, Ctrl-C.
 *
 * Exit statuses: 0 done, 1 failed, 2 the command line is wrong, 130 interrupted. A failure is one
 * sentence on standard error, "pith VERB: ...".
 */
#ifndef CLI_IO_H
#define CLI_IO_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "progress.h"
#include "pith/pith.h"

#define EXIT_USAGE 2
#define EXIT_INTERRUPTED 130 /* 128 + SIGINT, as a shell reports it */

/* The verb that failures name. Borrowed for ever. */
void cli_set_verb(const char *verb);

/* Ends the command at once, from any depth. */
_Noreturn void cli_exit(int status);
_Noreturn void cli_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void cli_fail_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Fails with the error's sentence unless status is PITH_OK; without one after Ctrl-C. */
void cli_check(pith_status status, const pith_error *err);
/* One line on standard error. */
void cli_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* size zeroed bytes; fails where there is no memory. The caller frees. */
void *cli_alloc(size_t n, size_t size);

/* ---- standard output ---- */

/* Writes and flushes; false when the output is gone or full, which cli_finish_output reports. */
bool cli_write(const char *text, size_t len);
/* Ends the output. Fails when any of it could not be written; a reader that went away is no news,
   so a broken pipe fails without a word. */
void cli_finish_output(void);

bool cli_is_terminal(int fd);
/* Columns of the terminal on standard output; 80 where it is none. */
int cli_columns(void);
/* Whether the locale's characters are UTF-8. */
bool cli_is_utf8(void);

/* ---- texts ---- */

struct cli_text {
    char *data; /* [len], then a zero; freed by the caller */
    size_t len;
};

/* The whole file; "-" is standard input. Fails with the path and the reason. */
struct cli_text cli_read_file(const char *path);
/* A copy in which \n \r \t \" \' \\ and \xHH are what they stand for. */
struct cli_text cli_unescape(const char *text, size_t len);
/* Removes one newline at the end. */
void cli_chomp(struct cli_text *text);

/* "512", "4.0 KiB", "1.5 GiB" into buf [32]; returns buf. */
const char *cli_bytes(int64_t bytes, char *buf);

/* ---- JSON ---- */

/* A string of any bytes: what is not UTF-8 becomes U+FFFD. */
json_t *cli_json_text(const char *text, size_t len);
/* Prints the value and a newline to standard output and frees it. */
void cli_json_print(json_t *value, size_t flags);

/* ---- Ctrl-C ---- */

/* From now on Ctrl-C sets a flag; a second one before cli_interrupt_clear ends the program. */
void cli_interrupt_catch(void);
bool cli_interrupted(void);
void cli_interrupt_clear(void);

#endif
