//! Tests over what `scripts/fetch-test-data` fetches: `just check` leaves them out.

mod files;
mod templates;
mod text;
