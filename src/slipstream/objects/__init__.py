"""Object Store: objects of any size in a stream, in chunks, with digests."""

from slipstream.objects.info import ObjectInfo, ObjectLink, ObjectOptions, ObjectStoreConfig, ObjectStoreStatus

__all__ = ["ObjectInfo", "ObjectLink", "ObjectOptions", "ObjectStoreConfig", "ObjectStoreStatus"]
