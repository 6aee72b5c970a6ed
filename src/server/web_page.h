// SPDX-License-Identifier: Apache-2.0
// The chat page: three files inside the program, served with a content policy that allows nothing from
// elsewhere.
#pragma once

#include "server/router.h"

namespace rorqual::server {

/// GET /, /chat.css, /chat.js; open without a key, as the page holds no data.
void add_web_page(Router& router);

}  // namespace rorqual::server
