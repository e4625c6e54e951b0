//! One receiving thread with its queue: a stream from one server.

use std::sync::Arc;
use std::thread;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::queue::{Counters, Queue};
use crate::receiver::{Receiver, connect, out_of_order};
use crate::sequence::{Place, Sequence};
use crate::stream_config::StreamConfig;

pub(crate) struct ServerStream {
    pub(crate) config: Arc<StreamConfig>,
    pub(crate) queue: Arc<Queue>,
    thread: Option<thread::JoinHandle<()>>,
}

impl ServerStream {
    /// Starts to receive from `connection`, whose stream is open at `place`. `counters` continue.
    pub(crate) fn start(
        config: Arc<StreamConfig>,
        place: Place,
        connection: Connection,
        counters: Counters,
    ) -> Result<ServerStream> {
        let sequence = Sequence::new(&config.info, place.0, place.1)
            .map_err(|d| out_of_order(&connection.server, d))?;
        let queue = Arc::new(Queue::new(connection.server.clone(), place, counters));
        queue.adopt(&connection.socket)?;
        let slots = connect(&queue, &connection, &config)?;
        let receiver = Receiver::new(Arc::clone(&config), Arc::clone(&queue), sequence, slots);
        let thread = thread::Builder::new()
            .name("forebay-receive".to_owned())
            .spawn(move || receiver.run(connection))
            .map_err(Error::Thread)?;
        Ok(ServerStream {
            config,
            queue,
            thread: Some(thread),
        })
    }

    /// Restarts at another position over a new connection. Received batches are discarded.
    pub(crate) fn seek(&mut self, place: Place) -> Result<()> {
        self.finish();
        let config = Arc::clone(&self.config);
        let connection = config.resolver.try_all(|servers| {
            let servers = config.order(servers, &[]);
            config.dial(&servers, place, &|_| Ok(()))
        })?;
        *self = ServerStream::start(config, place, connection, self.queue.counters())?;
        Ok(())
    }

    /// Stops the receiving thread.
    pub(crate) fn finish(&mut self) {
        self.queue.interrupt();
        if let Some(thread) = self.thread.take()
            && !self.queue.is_dialling()
        {
            // The thread is ending. One that is connecting ends at its timeout and is not joined.
            let _ = thread.join();
        }
    }
}

impl Drop for ServerStream {
    fn drop(&mut self) {
        self.finish();
    }
}
