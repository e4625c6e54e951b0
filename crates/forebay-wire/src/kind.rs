//! The table of messages: the kinds, their numbers, and which side may send each.

use std::fmt;

/// A side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Requests batches.
    Client,
    /// Sends batches.
    Server,
}

/// Calls a macro with all kinds of messages: the name, the number, and whether clients and servers may send it.
macro_rules! messages {
    ($callback:ident) => {
        $callback! {
            // kind = number, sent by client, sent by server
            Hello = 1 true false,
            Welcome = 2 false true,
            Open = 3 true false,
            Opened = 4 false true,
            Batch = 5 false true,
            EpochEnd = 6 false true,
            Credit = 7 true false,
            Error = 8 true true,
            Ping = 9 true true,
            StatsRequest = 10 true false,
            Stats = 11 false true,
            Close = 12 true false,
        }
    };
}
pub(crate) use messages;

macro_rules! kinds {
    ($($kind:ident = $number:literal $client:literal $server:literal,)*) => {
        /// The kind of a message. Its number is in the frame's head.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $(#[doc = concat!("`", stringify!($kind), "` of `proto/wire.proto`.")] $kind = $number,)*
        }

        impl Kind {
            /// All kinds, ordered by number.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// Returns the kind with this number.
            #[must_use]
            pub fn from_number(number: u8) -> Option<Kind> {
                match number {
                    $($number => Some(Kind::$kind),)*
                    _ => None,
                }
            }

            /// Returns whether `side` may send this kind.
            #[must_use]
            pub fn is_sent_by(self, side: Side) -> bool {
                let (client, server) = match self {
                    $(Kind::$kind => ($client, $server),)*
                };
                match side {
                    Side::Client => client,
                    Side::Server => server,
                }
            }
        }

        impl fmt::Display for Kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Kind::$kind => stringify!($kind),)*
                })
            }
        }
    };
}

messages!(kinds);
