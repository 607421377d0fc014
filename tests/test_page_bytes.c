/*
 * test_page_bytes.c - the page in the binary is the page in the repository, byte for byte, and asks
 * for nothing from anywhere else.
 */
#include <stdio.h>
#include <string.h>

#include "testing.h"

#include "page.h"

static void test_same_bytes(void **state)
{
    (void)state;
    static char file[1 << 20];
    FILE *in = fopen(PITH_SOURCE_DIR "/server/page/index.html", "rb");
    assert_non_null(in);
    size_t n = fread(file, 1, sizeof(file), in);
    fclose(in);
    assert_true(n > 1000 && n < sizeof(file));
    assert_int_equal(server_page_size, n);
    assert_memory_equal(server_page, file, n);
    assert_int_equal(server_page[n], 0);
}

static void test_no_other_origin(void **state)
{
    (void)state;
    static const char *const never[] = {"http://", "https://", "src=\"//", "@import", "url("};
    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++)
        if (strstr(server_page, never[i]) != NULL)
            fail_msg("the page has \"%s\" in it", never[i]);
    assert_non_null(strstr(server_page, "default-src 'none'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_no_other_origin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
