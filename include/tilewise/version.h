/* The version of these headers. tw_version() and tilewise::version() return the loaded library's.
 * The build reads the version from here. */
#ifndef TILEWISE_VERSION_H
#define TILEWISE_VERSION_H

#define TW_VERSION_MAJOR 0
#define TW_VERSION_MINOR 1
#define TW_VERSION_PATCH 0

#endif
