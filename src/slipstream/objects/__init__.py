"""Object Store: objects of any size on a stream, in chunks, with a digest."""

from slipstream.objects.info import ObjectInfo, ObjectLink, ObjectOptions, ObjectStoreConfig, ObjectStoreStatus

__all__ = ["ObjectInfo", "ObjectLink", "ObjectOptions", "ObjectStoreConfig", "ObjectStoreStatus"]
