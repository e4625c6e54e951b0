//! Reader and writer of Forebay's shards: TFRecord, the indexed shard, their indexes and the dataset manifest
