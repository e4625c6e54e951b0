"""A data loader of Forebay for DLIO: `forebay_dlio.loader.ForebayDataLoader`."""
