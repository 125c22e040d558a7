#!/bin/sh
# Pictures of a session's report for the documentation: desktop, tablet and phone, light and dark.
#   scripts/report_pictures.sh SESSION [FOLDER]      needs chromium; FOLDER defaults to docs/images
set -eu
session=$1
folder=${2:-docs/images}
page=$(mktemp --suffix .html)
profile=$(mktemp -d)
trap 'rm -rf "$page" "$profile"' EXIT
mkdir -p "$folder"
headrace report "$session" --html --out "$page" >/dev/null
picture() { # name width height [dark]
    dark=${4:+--force-dark-mode --enable-features=WebContentsForceDark:inversion_method/none --blink-settings=preferredColorScheme=0}
    # shellcheck disable=SC2086
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$profile" $dark \
        --screenshot="$folder/report-$1.png" --window-size="$2,$3" "file://$page" 2>/dev/null
    echo "$folder/report-$1.png"
}
picture desktop 1280 1700
picture tablet-dark 768 1400 dark
picture phone 390 1500
