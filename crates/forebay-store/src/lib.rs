//! Where bytes live: locations, durable publication of files, locks
