/* command.c - starts `pith` with files as its standard streams, so nothing can block. */
#define _POSIX_C_SOURCE 200809L

#include "command.h"

#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>

#include "testing.h"

#define WORDS_MAX 64

const char *command_path = PITH_COMMAND;

pid_t command_start(const char *const *words, int in, int out, int why)
{
    char *argv[WORDS_MAX + 2];
    int n = 0;
    argv[n++] = "pith";
    while (words[n - 1] != NULL && n <= WORDS_MAX) {
        argv[n] = (char *)words[n - 1];
        n++;
    }
    argv[n] = NULL;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(in, STDIN_FILENO);
        dup2(out, STDOUT_FILENO);
        dup2(why, STDERR_FILENO);
        execv(command_path, argv);
        _exit(127);
    }
    return pid;
}

int command_wait(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static char *read_back(FILE *file, size_t *len)
{
    fseek(file, 0, SEEK_END);
    *len = (size_t)ftell(file);
    rewind(file);
    char *text = calloc(*len + 1, 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *len, file), *len);
    fclose(file);
    return text;
}

struct said command_list(const char *input, const char *out_path, const char *const *words)
{
    struct said said = {0};
    FILE *in = tmpfile(), *log = tmpfile();
    FILE *out = out_path != NULL ? fopen(out_path, "w") : tmpfile();
    assert_true(in != NULL && out != NULL && log != NULL);
    if (input != NULL)
        fputs(input, in);
    rewind(in);
    said.status = command_wait(command_start(words, fileno(in), fileno(out), fileno(log)));
    fclose(in);
    if (out_path == NULL)
        said.out = read_back(out, &said.out_len);
    else
        fclose(out);
    said.err = read_back(log, &said.err_len);
    test_free_later(said.out);
    test_free_later(said.err);
    return said;
}

struct said command(const char *input, ...)
{
    const char *words[WORDS_MAX];
    int n = 0;
    va_list args;
    va_start(args, input);
    do
        words[n] = va_arg(args, const char *);
    while (words[n++] != NULL && n < WORDS_MAX);
    va_end(args);
    return command_list(input, NULL, words);
}

/* ---- expectations ---- */

void expect_status(const struct said *said, int status)
{
    if (said->status != status)
        fail_msg("exit status %d instead of %d; it said: %s", said->status, status, said->err);
}

void expect_word(const char *text, const char *word)
{
    if (strstr(text, word) == NULL)
        fail_msg("\"%s\" does not have \"%s\"", text, word);
}

void expect_failure(const struct said *said, int status, const char *word)
{
    expect_status(said, status);
    expect_word(said->err, word);
    assert_int_equal(strncmp(said->err, "pith", 4), 0);
    assert_ptr_equal(strchr(said->err, '\n'), said->err + said->err_len - 1);
}

/* ---- files ---- */

static char folder[64];

void folder_make(void)
{
    char path[128];
    strcpy(folder, "/tmp/pith-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    setenv("XDG_CACHE_HOME", in_folder("cache", path), 1); /* the home may have statistics */
}

void folder_remove(void)
{
    char line[128];
    snprintf(line, sizeof(line), "rm -rf '%s'", folder);
    assert_int_equal(system(line), 0);
}

const char *in_folder(const char *name, char *buf)
{
    snprintf(buf, 128, "%s/%s", folder, name);
    return buf;
}

void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}
