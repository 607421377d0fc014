/* test_new_file.c - files that appear whole: links, devices, standard output, what others left. */
#define _XOPEN_SOURCE 700

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testing.h"

#include "base/new_file.h"
#include "folder.h"

TEST_GROUP(make_folder, remove_folder);

static void save(const char *path, const char *text)
{
    check(pi_new_file_check(path, &err), &err);
    check(pi_new_file_save(path, text, strlen(text), &err), &err);
}

static void expect_content(const char *path, const char *text)
{
    char found[64] = "";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    found[fread(found, 1, sizeof(found) - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(found, text);
}

static void link_to(const char *path, const char *name)
{
    struct stat st;
    assert_int_equal(symlink(path, in_folder(name)), 0);
    save(in_folder(name), "by a link");
    assert_true(lstat(in_folder(name), &st) == 0 && S_ISLNK(st.st_mode));
}

TEST(links_lead_where_they_led)
{
    save(in_folder("old"), "old");
    link_to(in_folder("old"), "absolute");
    expect_content(in_folder("old"), "by a link");
    link_to("new", "relative"); /* to nothing yet */
    expect_content(in_folder("new"), "by a link");
    link_to("relative", "twice");
    assert_int_equal(symlink("round", in_folder("round")), 0);
    expect(pi_new_file_check(in_folder("round"), &err), &err, PITH_IO, "Too many levels");
    assert_int_equal(count_files("tmp-"), 0);
}

TEST(the_new_file_has_the_mode_of_the_old_one)
{
    struct stat st;
    save(in_folder("own"), "old");
    assert_int_equal(chmod(in_folder("own"), 0600), 0);
    save(in_folder("own"), "new");
    assert_int_equal(stat(in_folder("own"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
}

/* In a container every process may have the same number. */
TEST(a_file_that_a_killed_process_left_is_no_obstacle)
{
    char name[64];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "a.tmp-%ld-%d", (long)getpid(), i);
        fclose(fopen(in_folder(name), "w"));
    }
    save(in_folder("a"), "whole");
    expect_content(in_folder("a"), "whole");
    for (int i = 0; i < 3; i++) { /* they are there, and nothing else is */
        snprintf(name, sizeof(name), "a.tmp-%ld-%d", (long)getpid(), i);
        assert_int_equal(unlink(in_folder(name)), 0);
    }
    assert_int_equal(count_files("tmp-"), 0);
}

/* Others write to the same file, and a rename would put another in its place. */
TEST(standard_output_is_written_where_it_is)
{
    int before = dup(STDOUT_FILENO), out = open(in_folder("out"), O_WRONLY | O_CREAT, 0600);
    assert_true(before >= 0 && out >= 0 && write(out, "head ", 5) == 5);
    fflush(stdout);
    assert_int_equal(dup2(out, STDOUT_FILENO), STDOUT_FILENO);
    pith_status checked = pi_new_file_check("/dev/stdout", &err);
    pith_status saved = pi_new_file_save("/dev/stdout", "body ", 5, &err);
    assert_int_equal(dup2(before, STDOUT_FILENO), STDOUT_FILENO);
    check(checked, &err);
    check(saved, &err);
    assert_int_equal(write(out, "tail", 4), 4);
    expect_content(in_folder("out"), "head body tail");
}

TEST(devices_and_pipes_are_written_directly)
{
    char found[8] = "";
    SKIP_WITHOUT("/dev/full");
    save("/dev/null", "nothing");
    check(pi_new_file_check("/dev/full", &err), &err);
    expect(pi_new_file_save("/dev/full", "a", 1, &err), &err, PITH_IO,
           "/dev/full: cannot write: No space left on device");
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    int end = open(in_folder("pipe"), O_RDONLY | O_NONBLOCK);
    save(in_folder("pipe"), "through");
    assert_int_equal(read(end, found, sizeof(found)), 7);
    assert_string_equal(found, "through");
}

TEST(what_fails_leaves_the_old_file_and_nothing_else)
{
    struct rlimit old, small;
    static char large[5000];
    save(in_folder("a"), "old");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){1000, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pith_status status = pi_new_file_save(in_folder("a"), large, sizeof(large), &err);
    setrlimit(RLIMIT_FSIZE, &old);
    expect(status, &err, PITH_IO, "a: cannot write: File too large");
    expect_content(in_folder("a"), "old");
    assert_int_equal(count_files("tmp-"), 0);
    expect(pi_new_file_check("", &err), &err, PITH_IO, "is empty");
    expect(pi_new_file_check(folder, &err), &err, PITH_IO, "Is a directory");
    expect(pi_new_file_check(in_folder("no/a"), &err), &err, PITH_IO,
           "cannot create: No such file");
    expect(pi_new_file_check(in_folder("a/b"), &err), &err, PITH_IO, "cannot create: Not a dir");
}
