#include "applet.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/*
 * list PATH FLAGS LIMIT: an entry for each name in the folder, in order, paths relative to it; then the end record, cut
 * bit 1 when there are more than LIMIT. stat PATH FLAGS: one entry with an empty path.
 */

enum list_flag { LIST_RECURSIVE = 1, STAT_FOLLOW = 1 };

struct listing {
    bool recursive;
    bool cut;
    uint64_t left;
};

static enum tree_step list_one(void *context, const struct tree_entry *entry) {
    struct listing *listing = context;
    char link[PATH_MAX] = "";
    if (listing->left == 0) {
        listing->cut = true;
        return TREE_STOP;
    }
    listing->left--;
    if (S_ISLNK(entry->status->st_mode))
        link_target(entry->folder, entry->name, link);
    out_entry(entry->status, entry->path, link);
    return listing->recursive ? TREE_ENTER : TREE_NEXT;
}

void applet_list(char **argv) {
    struct listing listing = {
        .recursive = (applet_number(argv[2]) & LIST_RECURSIVE) != 0,
        .left = applet_number(argv[3]),
    };
    struct tree_visitor visitor = {.context = &listing, .visit = list_one};
    int fd = -1;
    int error = place_open_folder(argv[1], &fd);
    if (error == 0)
        error = tree_visit(fd, &visitor);
    if (error != 0)
        applet_fail(error, strerror(error));
    out_end(listing.cut, visitor.skipped);
}

void applet_stat(char **argv) {
    struct place place;
    struct stat status;
    char link[PATH_MAX] = "";
    int error = place_status(argv[1], (applet_number(argv[2]) & STAT_FOLLOW) != 0, &place, &status);
    if (error != 0)
        applet_fail(error, strerror(error));
    if (S_ISLNK(status.st_mode))
        link_target(place.folder, place.name, link);
    out_entry(&status, "", link);
    out_end(0, 0);
}
