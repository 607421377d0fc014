/*
 * command.h - runs the `pith` command as a user does, and keeps its output. PITH_COMMAND is its
 * path, from CMake.
 */
#ifndef TEST_COMMAND_H
#define TEST_COMMAND_H

#include <stddef.h>
#include <sys/types.h>

/* Which program that is: PITH_COMMAND, unless a test says otherwise. */
extern const char *command_path;

struct said {
    int status; /* exit status; 128 + N when signal N ended it */
    char *out;  /* standard output, [out_len], terminated */
    size_t out_len;
    char *err; /* standard error, [err_len], terminated */
    size_t err_len;
};

/* Runs the command with these words, ended by NULL, and input as its standard input (NULL: empty).
   The test's end frees the texts. */
struct said command(const char *input, ...);
/* The same with words in a list, and standard output opened on a file of the caller's (NULL: kept
   in out). */
struct said command_list(const char *input, const char *out_path, const char *const *words);

/* Fail the test unless the command said so. */
void expect_status(const struct said *said, int status);
void expect_word(const char *text, const char *word);
/* A failure: this exit status, and one sentence on standard error that has the word. */
void expect_failure(const struct said *said, int status, const char *word);

/* A folder for the files of a test program: cmocka's group fixtures, and the path of a file in it
   (buf [128]). */
void folder_make(void);
void folder_remove(void);
const char *in_folder(const char *name, char *buf);
void write_file(const char *path, const char *text);

/* Starts the command with descriptors of the caller's as standard input, output and error. */
pid_t command_start(const char *const *words, int in, int out, int why);
/* Waits; the status as in struct said. */
int command_wait(pid_t pid);

#endif
